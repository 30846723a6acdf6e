// Sends a job to the coordinator: the second half of `submit`, `fork` and `replay`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/cli.h"
#include "common/job/load.h"

namespace nsa::client {

struct SendOptions {
  std::string name;        // what messages call the job's source, e.g. the file
  std::string request_id;  // empty: a new UUID
  bool watch = false;      // then show the progress until the job ends
};

// Submits `job` and returns what was accepted. When preflight refuses it, prints every finding with
// its place in the source; the error is then InvalidArgument.
absl::StatusOr<v1::SubmitJobResponse> Send(Session& session, const JobFile& job,
                                           const SendOptions& options);

// The same; then prints what was accepted and the commands to try next.
absl::StatusOr<ExitCode> SendJob(Session& session, const JobFile& job, const SendOptions& options);

}  // namespace nsa::client
