// How a rank works through the micro-batches of a step.
//
// Every pass is one forward and one backward. On the CPU a pass is a micro-batch. On a GPU several
// micro-batches run as one pass, because a pass of a few thousand tokens leaves most of a GPU idle:
// the production job of the Python system, 2 × 2 sequences of 2,048 tokens, is one pass of four.
// The gradient is the same up to the order of its sums. Which rows a step trains on does not
// depend on it.
#pragma once

#include <cstdint>

#include "common/nsa/nsa_shape.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct Passes {
  int32_t count = 1;      // in a step
  int32_t merged = 1;     // micro-batches in each of them
  int32_t sequences = 1;  // of one rank, or of one group of ranks, in each of them
};

// Ranks of the job: resources.gpus, at least 1.
int32_t RanksOf(const v1::JobSpec& spec);

// Ranks that share a sequence, N: resources.context_parallel, at least 1. Rank r belongs to group r
// / N, whose ranks have the same sequences; each has 1/N of their tokens, and for the attention 1/N
// of the heads.
int32_t ContextOf(const v1::JobSpec& spec);

// The passes of one of `ranks` ranks: runtime.merge_micro_batches at a time on a GPU, 1 on the CPU.
// Where it does not divide train.accumulate_grad_batches, which preflight refuses, nothing is
// merged. Does not validate.
Passes PassesOf(const v1::JobSpec& spec, int32_t ranks);

// The same for the job's own number of ranks.
Passes PassesOf(const v1::JobSpec& spec);

// Tokens of a rank in one pass: sequences · seq_len / N. Of the attention it has all tokens of 1/N
// of the heads, which are as many values.
int64_t RankTokens(const v1::JobSpec& spec);

// The attention's shape on one rank in a pass: all tokens, 1/N of the heads and groups. Does not
// validate.
NsaShape RankShapeOf(const v1::JobSpec& spec);

// The default of runtime.merge_micro_batches: the largest divisor of accumulate_grad_batches with
// which a pass has at most 16,384 tokens of a rank and needs at most 6 GiB more than a single
// micro-batch. It depends on the job alone. Any spec is accepted; 1 where nothing can be merged.
int32_t DefaultMerge(const v1::JobSpec& spec);

}  // namespace nsa
