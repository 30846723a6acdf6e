// From an assignment to a running process.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/run/process.h"
#include "common/run/run_dir.h"
#include "nsa/v1/fleet.pb.h"
#include "worker/agent/options.h"

namespace nsa::agent {

// InvalidArgument unless the ids can name a folder: a job id of [A-Za-z0-9_-] and dots inside, at
// most 128 bytes; a generation from 1; a rank in [0, world size).
absl::Status CheckAssignment(const v1::WorkerAssignment& assignment);

// Makes the run folder, writes launch.pb, starts the worker and writes identity.json. On error no
// process runs. NotFound when the worker's program is missing.
absl::StatusOr<ProcessIdentity> Launch(const v1::WorkerAssignment& assignment, const RunDir& dir,
                                       const AgentOptions& options);

// The worker that was started for this folder and never got an identity file, because the agent
// died between the two. Found by its command line. NotFound when there is none.
absl::StatusOr<ProcessIdentity> FindWorkerOf(const RunDir& dir);

}  // namespace nsa::agent
