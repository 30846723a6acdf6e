// How a run ends, and what a Status says about it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

struct Ending {
  v1::Outcome outcome = v1::OUTCOME_UNSPECIFIED;
  std::string reason;  // a word of common/base/reason.h, else the name of a status code
  std::string text;    // for people
};

// The ending of a run that failed with `status`: the reason that it carries (common/base/reason.h)
// says whether a restart can help. Without one the reason is the status code, and errors of the job
// or its data are final.
Ending EndingOf(const absl::Status& status);

// Exit code of nsa-worker: 0 completed or stopped, 1 failed, 3 failed for good.
int ExitCodeOf(v1::Outcome outcome);

}  // namespace nsa
