// How long a job has run and how much of that time it used. Pure.
#pragma once

#include "absl/time/time.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa {

// Seconds from the job's first start to its end, or to `now`; negative before the first start.
// Waiting between two starts counts, the queue before the first does not.
double RunSeconds(const v1::Job& job, absl::Time now);

// The share of RunSeconds() that went into steps and validations that count
// (JobProgress.productive_seconds), 0 to 1; the rest is starting, standing still for checkpoints,
// and what failures and hangs cost. Negative before the first start.
double Goodput(const v1::Job& job, absl::Time now);

}  // namespace nsa
