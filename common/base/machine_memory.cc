#include "common/base/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/control_groups.h"

namespace nsa {
namespace {

// The lines "MemTotal: 24000000 kB" and "MemAvailable: …" of /proc/meminfo.
MachineMemory ReadMemInfo() {
  MachineMemory memory;
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  int64_t kilobytes = 0;
  while (file >> key >> kilobytes && std::getline(file, unit)) {
    if (key == "MemTotal:") memory.total_bytes = kilobytes * 1024;
    if (key == "MemAvailable:") memory.free_bytes = kilobytes * 1024;
  }
  return memory;
}

}  // namespace

MachineMemory ReadMachineMemory() {
  MachineMemory memory = ReadMemInfo();
  for (const std::filesystem::path& group : ControlGroups("memory")) {
    const auto limit = MemoryLimit(group);
    if (!limit.has_value() || limit->bytes >= memory.total_bytes) continue;
    auto used = GroupNumber(group / "memory.current");
    if (!used.has_value()) used = GroupNumber(group / "memory.usage_in_bytes");  // of version 1
    memory.total_bytes = limit->bytes;
    memory.free_bytes = std::clamp<int64_t>(limit->bytes - used.value_or(0), 0, memory.free_bytes);
  }
  return memory;
}

}  // namespace nsa
