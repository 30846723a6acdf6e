// What people say of a job: its labels and their notes. nsactl and the page do this alike.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/store/job_store.h"

namespace nsa::server {

// Carries out the request in the name of `who` and returns the job as it is then. `only` is the
// owner whose jobs alone exist for the caller; empty: all do. What has changed becomes an event
// LABELS_CHANGED, a note an event NOTE; a request that changes nothing adds none. NotFound;
// InvalidArgument for a request that says nothing, for labels and notes beyond their limits, for a
// label that is set and removed, and for a label by which a sweep knows its jobs: `sweep`, and keys
// of the job file such as train.lr. AlreadyExists for a request id that was used for something
// else.
absl::StatusOr<JobPtr> EditJob(JobStore& store, const v1::EditJobRequest& request,
                               const std::string& who, const std::string& only);

}  // namespace nsa::server
