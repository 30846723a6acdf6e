// The control groups (cgroups) of this process, whose limits apply to it beside those of the
// machine: in a container, in a service of systemd and under a batch system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace nsa {

// The folder of the topmost group, `mount`, and of those below it on the way to `group`, "/a/b".
std::vector<std::filesystem::path> GroupsOnTheWay(const std::filesystem::path& mount,
                                                  const std::filesystem::path& group);

// The folders of the groups of version 2, and of those of version 1 that have `controller` ("cpu"),
// from the one at the mount point down to the process's own. A folder need not exist: a container
// does not show the groups above its own. `groups` is the text of /proc/self/cgroup
// (cgroups(7)); `mount` is where the groups are mounted.
std::vector<std::filesystem::path> ControlGroups(std::string_view controller,
                                                 std::string_view groups,
                                                 const std::filesystem::path& mount);

// Those of this process.
std::vector<std::filesystem::path> ControlGroups(std::string_view controller);

// The number in a file of a group, such as memory.current; nothing when it says "max" or does not
// exist.
std::optional<int64_t> GroupNumber(const std::filesystem::path& file);

struct GroupLimit {
  int64_t bytes = 0;
  std::filesystem::path file;  // that says so
};

// How much memory the processes of a group may use (memory.max; memory.limit_in_bytes in version
// 1); nothing without a limit.
std::optional<GroupLimit> MemoryLimit(const std::filesystem::path& group);

}  // namespace nsa
