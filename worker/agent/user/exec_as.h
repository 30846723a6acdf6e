// Starts a program as another user, in a cgroup. A process of the agent's has threads, so it cannot
// fork; posix_spawn cannot change the user. So the agent starts its own program again, as
// `nsa-agent exec-as`, which enters the cgroup, gives up every privilege for good, and then becomes
// the program: the process stays the same one.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>

#include "absl/status/statusor.h"
#include "common/run/process.h"
#include "worker/agent/user/unix_user.h"

namespace nsa::agent {

struct ExecAs {
  std::filesystem::path agent_program;
  std::optional<UnixUser> user;  // none: the agent's
  std::filesystem::path cgroup;  // empty: the agent's
};

// Like Spawn() of `options`. When it returns, the process has become the program. On error nothing
// runs, and the message says what could not be done. May wait some seconds on a busy machine.
absl::StatusOr<ProcessIdentity> SpawnAs(const ExecAs& as, SpawnOptions options);

// Main program of `nsa-agent exec-as UID GID GROUPS CGROUP PROGRAM ARGUMENT…`, where GROUPS is a
// list with commas and "-" means no change. An error goes to descriptor 3, and the exit code is
// 126.
inline constexpr char kExecAs[] = "exec-as";
inline constexpr int kExecAsArguments = 6;  // before the program
int ExecAsMain(int argc, char** argv);

}  // namespace nsa::agent
