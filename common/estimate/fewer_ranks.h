// With how many ranks a job may start when there is no room for all of them (restart.min_ranks).
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "nsa/v1/job.pb.h"

namespace nsa {

// Whether that many ranks can share the job's batch: they are a multiple of
// resources.context_parallel, and the groups of so many ranks, each with the same number of
// sequences, divide train.batch_size.
bool SharesBatch(const v1::JobSpec& spec, int64_t ranks);

// The numbers of ranks below resources.gpus with which the job may start: at least
// restart.min_ranks, each one that shares the batch, the largest first. Empty without min_ranks,
// and for a job whose machines come from a cluster manager, which always gives all of them.
std::vector<int32_t> FewerRanks(const v1::JobSpec& spec);

// The job as `ranks` of its resources.gpus ranks on `machines` machines run it: resources says so,
// the throughput guard, which is over all ranks, asks for their share, and there is no min_ranks.
// The batch is the same.
v1::JobSpec WithFewerRanks(v1::JobSpec spec, int32_t ranks, int32_t machines);

}  // namespace nsa
