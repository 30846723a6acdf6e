// With how many of its ranks a placed job starts or runs (restart.min_ranks). Pure.
#pragma once

#include "nsa/v1/store.pb.h"

namespace nsa::server {

// The job is placed with fewer ranks than resources.gpus. False if it is not placed.
bool HasFewerRanks(const v1::StoredJob& job);

// The job as its placement runs it: with the ranks and machines that it has. Placed with all its
// ranks, or not placed, it is the job's spec.
v1::JobSpec SpecOfStart(const v1::StoredJob& job);

}  // namespace nsa::server
