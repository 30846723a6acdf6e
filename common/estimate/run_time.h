// How long a job has run and which share of that time was productive. Pure.
#pragma once

#include "absl/time/time.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa {

// The job's run time until `now`: the seconds in which its ranks ran, over all starts and resumes;
// negative before the first start. Waits in the queue, before a restart and while the job was
// stopped do not count. A coordinator of an earlier version does not say it: then the seconds from
// the first start to the end.
double RunSeconds(const v1::Job& job, absl::Time now);

// The productive share of RunSeconds(), 0 to 1: steps and validations, each counted once
// (JobProgress.productive_seconds). The rest went into starts, pauses for checkpoints, steps
// that were lost, and hangs. Negative before the first start.
double Goodput(const v1::Job& job, absl::Time now);
// The same, with a run time from 0.
double Goodput(const v1::JobProgress& progress, double run_seconds);

}  // namespace nsa
