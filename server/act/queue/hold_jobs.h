// Jobs that wait for others and for a time (decide/queue/hold.h): what they wait for is found when
// they are submitted, and looked after while they are queued.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/job_status.pb.h"
#include "server/store/job_store.h"

namespace nsa::server {

// The job that this name or id means, if another one may wait for it. InvalidArgument `value
// (limit); what to do` when there is none, and when it has ended without having finished. `only`
// as in JobStore::Find().
absl::StatusOr<JobPtr> FindAwaited(const JobStore& store, const std::string& name,
                                   const std::string& only);

// Fills in Job.after from spec.after, and InvalidArgument as FindAwaited(), for one that is named
// twice, and for one that itself waits for this job, directly or through others.
absl::Status HoldForJobs(const JobStore& store, const std::string& only, v1::Job* job);

// Fills in Job.not_before_unix_nanos from spec.not_before, for a job that is submitted at `submit`.
// InvalidArgument when that is not valid.
absl::Status HoldForTime(absl::Time submit, v1::Job* job);

// Notes what has become of the jobs that queued ones wait for, and whether the time of a job has
// come; each job that has news is one transaction. Called by the reconciler in every tick. `now`:
// the wall clock.
void KeepHolds(JobStore& store, const std::vector<JobPtr>& active, absl::Time now);

}  // namespace nsa::server
