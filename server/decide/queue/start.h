// With how many of its ranks a placed job starts or runs (restart.min_ranks). Pure.
#pragma once

#include "nsa/v1/store.pb.h"

namespace nsa::server {

// The job is placed with fewer ranks than resources.gpus. False if it is not placed.
bool HasFewerRanks(const v1::StoredJob& job);

// The job as its placement runs it: with the ranks and machines that it has, and without what only
// the coordinator needs (after, not_before, alerts). Workers of earlier versions refuse a key that
// they do not know.
v1::JobSpec SpecOfStart(const v1::StoredJob& job);

}  // namespace nsa::server
