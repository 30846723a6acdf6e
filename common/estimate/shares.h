// What the ranks of a job divide, and what they send each other.
#pragma once

#include <cstdint>

#include "nsa/v1/job.pb.h"

namespace nsa {

// Whether each of `ranks` ranks keeps the optimizer's state of its share of the parameters only
// (worker/train/model/shares.h): with runtime.shard_optimizer and more than one rank.
bool ShardsOptimizer(const v1::JobSpec& spec, int32_t ranks);

// runtime.shard_optimizer of a job on GPUs that does not set it: true with Muon on several GPUs of
// one machine, unless they share sequences. There it is faster, because each matrix is
// orthogonalized once instead of by every rank (docs/two_gpus.md has figures). With AdamW it gains
// at most 2 % of a step, and whole state lets the ranks compare their fp32 weights.
bool DefaultShards(const v1::JobSpec& spec);

// Whether the gradients of `ranks` ranks travel between them in bf16: with
// runtime.gradient_precision: bf16 and more than one rank.
bool SendsBf16Gradients(const v1::JobSpec& spec, int32_t ranks);

}  // namespace nsa
