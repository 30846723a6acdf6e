// When a job may begin, as a job file writes it (JobSpec.not_before): a time, or a duration that is
// counted from the submit. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa {

struct StartTime {
  bool relative = false;
  absl::Duration after;  // of a relative one
  absl::Time at;         // of another one
};

// InvalidArgument `value (limit); what to do`.
absl::StatusOr<StartTime> ParseStartTime(const std::string& not_before);

// The same as a time, for a job that is submitted at `submit`. Also InvalidArgument if that is more
// than 366 days ahead.
absl::StatusOr<absl::Time> StartTimeFor(const std::string& not_before, absl::Time submit);

}  // namespace nsa
