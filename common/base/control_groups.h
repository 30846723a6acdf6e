// The control groups (cgroups) of this process, whose limits apply to it beside those of the
// machine: in a container, in a service of systemd and under a batch system.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace nsa {

// The folders of the groups of version 2, and of those of version 1 that have `controller` ("cpu"),
// from the one at the mount point down to the process's own. A folder need not exist: a container
// does not show the groups above its own. `groups` is the text of /proc/self/cgroup
// (cgroups(7)); `mount` is where the groups are mounted.
std::vector<std::filesystem::path> ControlGroups(std::string_view controller,
                                                 std::string_view groups,
                                                 const std::filesystem::path& mount);

// Those of this process.
std::vector<std::filesystem::path> ControlGroups(std::string_view controller);

}  // namespace nsa
