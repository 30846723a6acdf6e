// Cgroups (version 2) of ranks. A process in a cgroup cannot leave it by making a session of its
// own or by losing its parent, so ending the cgroup ends every process that a rank has started. No
// controller is needed for that; if the cgroup has the memory controller, it also shows whether the
// kernel ended a process because memory ran out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/agent/rank_key.h"

namespace nsa::agent {

// Where the ranks of an agent get their cgroups.
struct CgroupHome {
  std::filesystem::path folder;  // empty: nowhere
  std::string prefix;            // of their names; different for each agent of the machine
  std::string why_not;           // human-readable, without a folder: why

  // Empty without a folder.
  std::filesystem::path Of(const RankKey& key) const;
  // The cgroups of this agent's ranks that exist.
  std::vector<std::filesystem::path> All() const;
};

// `setting` is AgentConfig.worker_cgroup: "" and auto take the agent's own cgroup if it may make
// others in it and is not the machine's first one. The cgroup is tried by starting `agent_program`
// in one. InvalidArgument if a path is named that cannot be used, with what to do.
absl::StatusOr<CgroupHome> FindCgroupHome(const std::string& setting,
                                          const std::filesystem::path& state_dir,
                                          const std::filesystem::path& agent_program);

// Makes an empty cgroup. One that is left of this name is ended first.
absl::Status MakeCgroup(const std::filesystem::path& cgroup);

// Sends SIGKILL to every process in it. Does nothing if there is no such cgroup.
void KillCgroup(const std::filesystem::path& cgroup);

// Ends every process in it and removes it. False if it is still there after two seconds, for
// example because a process cannot be ended at present.
bool EndCgroup(const std::filesystem::path& cgroup);

// How many of its processes the kernel ended because memory ran out; 0 without the controller.
int64_t OutOfMemoryKills(const std::filesystem::path& cgroup);

}  // namespace nsa::agent
