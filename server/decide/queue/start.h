// With how many of its ranks a placed job starts or runs (restart.min_ranks). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/v1/store.pb.h"

namespace nsa::server {

// The job is placed with fewer ranks than resources.gpus. False if it is not placed.
bool HasFewerRanks(const v1::StoredJob& job);

// "4 ranks", or "2 of 4 ranks" if it has fewer than it asks for.
std::string RanksText(const v1::JobSpec& spec, int64_t ranks);

// The job as its placement runs it: with the ranks and machines that it has. Placed with all its
// ranks, or not placed, it is the job's spec.
v1::JobSpec SpecOfStart(const v1::StoredJob& job);

}  // namespace nsa::server
