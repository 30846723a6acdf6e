// Starts the worker process of an assignment.
#pragma once

#include <filesystem>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/run/process.h"
#include "common/run/run_dir.h"
#include "nsa/v1/fleet.pb.h"
#include "worker/agent/options.h"
#include "worker/agent/user/unix_user.h"

namespace nsa::agent {

// InvalidArgument unless the ids can name a folder: a job id of at most 128 characters from
// [A-Za-z0-9_.-] that does not begin with a dot; a generation of at least 1; a rank in [0, world
// size).
absl::Status CheckAssignment(const v1::WorkerAssignment& assignment);

// Makes the run folder, writes launch.pb, starts the worker and writes identity.json. With `user`
// (may be null) it runs as that user. With `cgroup` (may be empty) it runs in that cgroup, which is
// made. On error no process runs. NotFound when the worker's program is missing.
absl::StatusOr<ProcessIdentity> Launch(const v1::WorkerAssignment& assignment, const RunDir& dir,
                                       const UnixUser* user, const std::filesystem::path& cgroup,
                                       const AgentOptions& options);

// Finds, by its command line, the worker of this folder when there is no identity file: the agent
// died after it had started the worker and before it wrote the file. Only a process of the folder's
// owner counts. NotFound when there is none.
absl::StatusOr<ProcessIdentity> FindWorkerOf(const RunDir& dir);

}  // namespace nsa::agent
