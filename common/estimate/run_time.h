// How long a job has run and which share of that time was productive. Pure.
#pragma once

#include "absl/time/time.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa {

// Seconds from the job's first start to its end, or to `now`; negative before the first start.
// Includes the waits between two starts, but not the wait before the first one.
double RunSeconds(const v1::Job& job, absl::Time now);

// The productive share of RunSeconds(), 0 to 1: steps and validations, each counted once
// (JobProgress.productive_seconds). The rest went into starts, pauses for checkpoints, failures and
// hangs. Negative before the first start.
double Goodput(const v1::Job& job, absl::Time now);

}  // namespace nsa
