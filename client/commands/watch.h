// Watching a job until it ends; shared by `watch`, `submit --watch` and `resume --watch`.
#pragma once

#include "absl/status/statusor.h"
#include "client/connect/session.h"
#include "client/exit_code.h"

namespace nsa::client {

// Shows `job` until it has ended: live on a terminal, else a line at every change of state,
// at validations and checkpoints (at most every 2 s) and every 10 s; with -o json or yaml a
// document at every change. Continues after a restart of the coordinator. Returns kFailed when the
// job failed. Ctrl-C leaves the job running, says so, and returns kInterrupted.
absl::StatusOr<ExitCode> WatchToEnd(Session& session, const v1::Job& job);

}  // namespace nsa::client
