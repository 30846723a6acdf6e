#include "common/base/control_groups.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_split.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

// Appends `top` and the folders below it on the way to `group`, "/a/b".
void AddFrom(const fs::path& top, const fs::path& group, std::vector<fs::path>* folders) {
  folders->push_back(top);
  for (const fs::path& name : group.relative_path()) {
    // The group is not below the root of this process's cgroup namespace, so it is not shown.
    if (name == "..") return;
    if (!name.empty()) folders->push_back(folders->back() / name);
  }
}

}  // namespace

std::vector<fs::path> ControlGroups(std::string_view controller, std::string_view groups,
                                    const fs::path& mount) {
  std::vector<fs::path> folders;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(groups.data(), groups.size()), '\n')) {
    // "0::/system.slice/nsa-agent.service", and in version 1 "4:cpu,cpuacct:/docker/4f5e"
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) {
      AddFrom(mount, parts[2], &folders);
      continue;
    }
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    AddFrom(mount / parts[1], parts[2], &folders);
  }
  return folders;
}

std::vector<fs::path> ControlGroups(std::string_view controller) {
  std::ifstream file("/proc/self/cgroup");
  const std::string groups(std::istreambuf_iterator<char>(file), {});
  return ControlGroups(controller, groups, "/sys/fs/cgroup");
}

}  // namespace nsa
