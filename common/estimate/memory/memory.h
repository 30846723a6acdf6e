// The memory that a rank of a job takes, and what backward recomputes so that it takes less. Pure.
// Preflight and the worker use the same functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/v1/job.pb.h"

namespace nsa {

// What backward recomputes instead of keeping it from forward. Each takes less memory and more time
// than the one before it, and none changes a bit of the result.
enum class Recompute : uint8_t {
  kNothing,  // nothing: everything is kept
  kNorms,    // what kernels of backward compute on the way: outputs of norms, activation of the MLP
  kMlp,      // also the second norm and fc1; the attention results are kept
  kBlock,    // the whole block, from its input
};

// "nothing", "norms", "mlp", "block".
std::string_view RecomputeName(Recompute recompute);

// kNothing without runtime.gradient_checkpointing. With it the first whose MemoryEstimate() is at
// most kShareOfMemory of `memory`, the bytes that a rank can have of its GPU. Where that is not
// known (0), and on the CPU: kMlp, or kBlock if the attention results of all layers would take more
// than 12 GiB per rank. Ranks that share sequences exchange data when they recompute a block, so
// whether they do depends on the job alone: kBlock as if the memory were not known.
Recompute RecomputeOf(const v1::JobSpec& spec, int64_t memory = 0);

constexpr double kShareOfMemory = 0.8;

struct MemoryItem {
  std::string name;  // "master weights", "activations", …
  int64_t bytes = 0;
};

// The peak memory of one rank, divided into parts; with what RecomputeOf(spec) says, or another.
std::vector<MemoryItem> MemoryEstimate(const v1::JobSpec& spec, Recompute recompute);
std::vector<MemoryItem> MemoryEstimate(const v1::JobSpec& spec);
int64_t TotalBytes(const std::vector<MemoryItem>& items);

// Host memory in bytes that `ranks` ranks of the job together have for the copies from which they
// write checkpoints (worker/train/checkpoint/checkpoint.h): 12 for each parameter of their slices.
// On the CPU it is a part of MemoryEstimate(); on GPUs it is pinned, and no part of that. If the
// machines have an out_dir each, the ranks of each machine have slices of the whole instead, which
// is not known here.
int64_t SnapshotBytes(const v1::JobSpec& spec, int64_t ranks);

// Host memory in bytes that `ranks` ranks on GPUs have together while they start
// (worker/train/model/state.h): for each rank fp32 and bf16 copies of the weights that it keeps on
// its GPU in bf16, all of them unless they are divided, and copies of its moments.
int64_t StartBytes(const v1::JobSpec& spec, int64_t ranks);

}  // namespace nsa
