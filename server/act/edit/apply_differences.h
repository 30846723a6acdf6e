// Changes a job's settings without undoing what others changed meanwhile.
#pragma once

#include "absl/status/status.h"
#include "nsa/v1/job.pb.h"

namespace nsa::server {

// Makes the changes that lead from `before` to `after` in `*spec`, which may have changed since
// `before` was read: of the labels each by itself, none is removed, of everything else whole
// sections (train, restart, …). InvalidArgument if the job would then have too many labels.
absl::Status ApplyDifferences(const v1::JobSpec& before, const v1::JobSpec& after,
                              v1::JobSpec* spec);

}  // namespace nsa::server
