// What people say of a job: its labels, their notes, and which of its problems they know of. nsactl
// and the page do this alike.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/store/job_store.h"

namespace nsa::server {

// Carries out the request in the name of `who` and returns the job as it is then. `only` is the
// owner whose jobs alone exist for the caller; empty: all do. What has changed becomes an event
// LABELS_CHANGED, a note an event NOTE, a mute MUTED and its end UNMUTED; a request that changes
// nothing adds none. NotFound; InvalidArgument for a request that says nothing, for labels and
// notes beyond their limits, for a label that is set and removed, for a problem that is muted and
// unmuted or whose name is not in upper case, and for a label by which a sweep knows its jobs:
// `sweep`, and keys of the job file such as train.lr. AlreadyExists for a request id that was used
// for something else.
absl::StatusOr<JobPtr> EditJob(JobStore& store, const v1::EditJobRequest& request,
                               const std::string& who, const std::string& only);

}  // namespace nsa::server
