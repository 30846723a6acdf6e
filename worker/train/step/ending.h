// How a run ends, and the ending that follows from an error.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::train {

struct Ending {
  v1::Outcome outcome = v1::OUTCOME_UNSPECIFIED;
  std::string reason;  // a word of common/base/reason.h, or the name of a status code
  std::string text;    // human-readable
};

// The ending of a run that failed with `status`. A run that was stopped before its first step has
// the reason STOPPED and has not failed. If the status has a reason (common/base/reason.h),
// the reason determines whether a restart can help. Otherwise the reason is the status code, and
// codes that stand for errors of the job or its data are final.
Ending EndingOf(const absl::Status& status);

// Exit code of nsa-worker: 0 completed or stopped, 1 failed, 3 failed for good.
int ExitCodeOf(v1::Outcome outcome);

}  // namespace nsa::train
