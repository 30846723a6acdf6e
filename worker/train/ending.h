// How a run ends, and what a Status says about it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

struct Ending {
  v1::Outcome outcome = v1::OUTCOME_UNSPECIFIED;
  std::string reason;  // UPPER_SNAKE
  std::string text;    // for people
};

// The ending of a run that failed with `status`. The reason is the one that the message names
// (PEER_LOST, DATA_STALLED, NO_VALID_CHECKPOINT, …), else the status code. Errors of the job or its
// data are final; errors of the machine or of a peer may go away with a restart.
Ending EndingOf(const absl::Status& status);

// Exit code of nsa-worker: 0 completed or stopped, 1 failed, 3 failed for good.
int ExitCodeOf(v1::Outcome outcome);

}  // namespace nsa
