// What the ranks of a job divide, and what they send each other.
#pragma once

#include <cstdint>

#include "nsa/v1/job.pb.h"

namespace nsa {

// Whether each of `ranks` ranks keeps the optimizer's state of its share of the parameters only
// (worker/train/model/shares.h): with runtime.shard_optimizer and more than one rank.
bool ShardsOptimizer(const v1::JobSpec& spec, int32_t ranks);

// Whether the gradients of `ranks` ranks travel between them in bf16: with
// runtime.gradient_precision: bf16 and more than one rank.
bool SendsBf16Gradients(const v1::JobSpec& spec, int32_t ranks);

}  // namespace nsa
