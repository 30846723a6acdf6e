// Arithmetic about a job: parameters, memory, disk, FLOPs, time. Pure; used by preflight, by
// `nsactl validate`, by the worker's arena and by MFU, so that they agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// The attention's shape in one rank's pass (passes.h). Does not validate.
NsaShape ShapeOf(const v1::JobSpec& spec);

// The branches of the model; all of them when the spec lists none.
BranchSet BranchesOf(const v1::NsaSpec& nsa);

// Vocabulary: model.vocab, or the tokenizer's.
int32_t VocabOf(const v1::JobSpec& spec);

// Trainable parameters; 78,295,332 for m7c with bytes.
int64_t ParameterCount(const v1::JobSpec& spec);

// Predicted tokens of a step over all ranks: batch_size · accumulate_grad_batches · (seq_len) .
int64_t TokensPerStep(const v1::JobSpec& spec);

// The data sheet's dense bf16 rate of a GPU of this name, FLOP/s; 0 when the name is not known. MFU
// is model FLOPs a second over this.
double PeakFlops(const std::string& device_name);

// Floating-point operations for one token, forward and backward, attention included, recomputation
// not.
double FlopsPerToken(const v1::JobSpec& spec);

// What backward computes again instead of keeping it from forward.
enum class Recompute : uint8_t {
  kNothing,  // everything is kept
  kMlp,      // the two norms, fc1 and SiLU; the attention's results are kept
  kBlock,    // the whole block, from its input
};

// kNothing without runtime.gradient_checkpointing. With it kMlp, or kBlock where the attention's
// results of all layers take more than 12 GiB of a rank. Time and memory depend on it, bits do not.
Recompute RecomputeOf(const v1::JobSpec& spec);

struct MemoryItem {
  std::string name;  // "master weights", "activations", …
  int64_t bytes = 0;
};

// One rank's memory by part; the parts sum to the peak.
std::vector<MemoryItem> MemoryEstimate(const v1::JobSpec& spec);
int64_t TotalBytes(const std::vector<MemoryItem>& items);

// One checkpoint on disk, all ranks.
int64_t CheckpointBytes(const v1::JobSpec& spec);

// Expected tokens a second over all ranks on a device of this kind ("cpu", or a GPU's name), from
// measured model FLOP utilisation; the table is in estimate.cc with the dates of its figures.
double ExpectedTokensPerSecond(const v1::JobSpec& spec, const std::string& device_name, int cores);

}  // namespace nsa
