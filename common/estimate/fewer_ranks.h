// With how many ranks a job may start when there is no room for all of them (restart.min_ranks).
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nsa/v1/job.pb.h"

namespace nsa {

// Whether that many ranks can share the job's batch: they are a multiple of
// resources.context_parallel, and the groups of so many ranks, each with the same number of
// sequences, divide train.batch_size.
bool SharesBatch(const v1::JobSpec& spec, int64_t ranks);

// The largest number of ranks below `below` that shares the batch; 0 if there is none.
int64_t NextFewer(const v1::JobSpec& spec, int64_t below);

// Whether a job that has `ranks` ranks has fewer than it asks for. Not with 0: it is not placed.
bool HasFewerRanks(const v1::JobSpec& spec, int64_t ranks);

// "4", or "2 of 4" if the job asks for more than it has; and "4 ranks", "2 of 4 ranks".
std::string RankCount(const v1::JobSpec& spec, int64_t ranks);
std::string RanksText(const v1::JobSpec& spec, int64_t ranks);

// The numbers of ranks below resources.gpus with which the job may start: at least
// restart.min_ranks, each one that shares the batch, the largest first. Empty without min_ranks,
// and for a job whose machines come from a cluster manager, which always gives all of them.
std::vector<int32_t> FewerRanks(const v1::JobSpec& spec);

// The job as `ranks` of its resources.gpus ranks on `machines` machines run it: resources says so,
// the throughput guard, which is over all ranks, asks for their share, and there is no min_ranks.
// The batch is the same.
v1::JobSpec WithFewerRanks(v1::JobSpec spec, int32_t ranks, int32_t machines);

}  // namespace nsa
