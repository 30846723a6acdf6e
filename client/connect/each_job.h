// Commands that take several jobs and give one result per job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace nsa::client {

// Calls `act` for each of `jobs` in order, also after an error of one job. Ends early when the
// error is not about the job: no coordinator answers, the token is refused, or Ctrl-C.
//
// Returns OK when every call did. The error of a single job is returned unchanged. With several
// jobs the error has the code of the first one, a line `JOB: message` for each, and a last line
// that counts them: "stop: failed for 1 of 3 jobs; see the lines above". `noun`: what they are.
absl::Status ForEachJob(const std::string& command, const std::vector<std::string>& jobs,
                        const std::function<absl::Status(const std::string& job)>& act,
                        const std::string& noun = "job");

}  // namespace nsa::client
