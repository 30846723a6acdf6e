// What nsactl and the page do alike when a job is profiled.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/act/profile/profile_broker.h"
#include "server/store/job_store.h"

namespace nsa::server {

// The job with this id or name, which must train. `only` is the submitter whose jobs are looked at;
// empty: all jobs. NotFound; FailedPrecondition for a job that does not train.
absl::StatusOr<JobPtr> FindJobToProfile(const JobStore& store, const std::string& job,
                                        const std::string& only);

// Adds the event PROFILED to the job's history; nothing when no rank gave a trace.
void NoteProfiled(JobStore* store, const std::string& job_id, const ProfileBroker::Summary& summary,
                  const std::string& who);

}  // namespace nsa::server
