#include "common/base/control_groups.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_split.h"

namespace nsa {

namespace fs = std::filesystem;

std::vector<fs::path> GroupsOnTheWay(const fs::path& mount, const fs::path& group) {
  std::vector<fs::path> folders = {mount};
  for (const fs::path& name : group.relative_path()) {
    // The group is not below the root of this process's cgroup namespace, so it is not shown.
    if (name == "..") break;
    if (!name.empty() && name != ".") folders.push_back(folders.back() / name);
  }
  return folders;
}

std::vector<fs::path> ControlGroups(std::string_view controller, std::string_view groups,
                                    const fs::path& mount) {
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& top, const fs::path& group) {
    std::ranges::copy(GroupsOnTheWay(top, group), std::back_inserter(folders));
  };
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(groups.data(), groups.size()), '\n')) {
    // "0::/system.slice/nsa-agent.service", and in version 1 "4:cpu,cpuacct:/docker/4f5e"
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) {
      add(mount, parts[2]);
      continue;
    }
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    add(mount / parts[1], parts[2]);
  }
  return folders;
}

std::vector<fs::path> ControlGroups(std::string_view controller) {
  std::ifstream file("/proc/self/cgroup");
  const std::string groups(std::istreambuf_iterator<char>(file), {});
  return ControlGroups(controller, groups, "/sys/fs/cgroup");
}

std::optional<int64_t> GroupNumber(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

std::optional<GroupLimit> MemoryLimit(const fs::path& group) {
  for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
    const auto bytes = GroupNumber(group / name);
    if (bytes.has_value() && *bytes > 0) return GroupLimit{*bytes, group / name};
  }
  return std::nullopt;
}

}  // namespace nsa
