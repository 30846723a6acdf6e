// How long a job's ranks have run, against limits.hours. Pure.
//
// The time counts from the start of a generation until its ranks have ended, over all generations
// since the job was submitted or last resumed. Time in the queue, in preflight and before a restart
// does not count. It goes on while no coordinator runs, so it is measured by the wall clock; when
// that one is set, the stored times are moved with it (act/clock_follower.h).
#pragma once

#include <string>

#include "absl/time/time.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// How long the ranks have run until `now`, in seconds, since the job was submitted or last resumed.
double RunSeconds(const v1::StoredJob& job, absl::Time now);

// The same, also before it was resumed.
double TotalRunSeconds(const v1::StoredJob& job, absl::Time now);

// Fills in the run time of a job as clients see it (common/estimate/run_time.h).
void ShowRunTime(const v1::StoredJob& stored, v1::Job* job);

// Whether the job has a limit and has reached it.
bool TimeIsUp(const v1::StoredJob& job, absl::Time now);

// "3 h 12 min of 24 h left (limits.hours)", in whole minutes; empty for a job without a limit.
std::string TimeLeftText(const v1::StoredJob& job, absl::Time now);

// Why a job that has reached its limit stops, and what to do.
std::string TimeIsUpText(const v1::Job& job);

}  // namespace nsa::server
