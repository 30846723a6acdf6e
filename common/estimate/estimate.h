// Calculates a job's parameters, disk space, FLOPs and speed; memory/memory.h its memory. Pure.
// Preflight, the worker and the MFU metric all use these functions, so their figures agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/nsa/nsa_shape.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// The attention shape of one rank's pass (passes.h), with all heads: RankShapeOf() has those of a
// rank. Does not validate.
NsaShape ShapeOf(const v1::JobSpec& spec);

// Vocabulary size: model.vocab, or the tokenizer's if that is 0; 0 with data.tokenizer: bpe, whose
// file says it (PlaceJob()). Preflight refuses 0.
int32_t VocabOf(const v1::JobSpec& spec);

// Trainable parameters: 78,295,332 for m7c with byte tokens.
int64_t ParameterCount(const v1::JobSpec& spec);

// The parameters of the model's parts in the order in which backward completes their gradients: the
// final norm and the head, of each block from the last to the first the MLP with its norm and the
// rest, the embedding. With model.tie_embeddings the head is that of the last part.
std::vector<int64_t> PartParameters(const v1::JobSpec& spec);

// Predicted tokens per step over all ranks: batch_size · accumulate_grad_batches · seq_len.
int64_t TokensPerStep(const v1::JobSpec& spec);

// Dense bf16 peak of a GPU of this name in its data sheet, in FLOP/s; 0 if the name is not known.
// MFU is the model FLOPs per second divided by this.
double PeakFlops(const std::string& device_name);

// Floating-point operations per token, forward and backward. Includes attention, excludes
// recomputation.
double FlopsPerToken(const v1::JobSpec& spec);

// Peak host memory of the worker per byte of text in data files whose tokens a rank holds: 562 MB
// were measured for 98 MB of text.
constexpr double kHostBytesPerTextByte = 6;

// The size of text divided by the size of the .gz or .zst file that holds it; an assumption.
constexpr double kTextPerCompressedByte = 3;

// Size of one checkpoint on disk, of all ranks together.
int64_t CheckpointBytes(const v1::JobSpec& spec);

// Space in bytes that the checkpoints of a run take at most: train.keep_checkpoints and the one
// that is being written, with what ranks other than 0 hand over to it.
double DiskForCheckpoints(const v1::JobSpec& spec);

// Expected tokens per second over all ranks on a device ("cpu" or a GPU's name), from measured FLOP
// rates. The table in devices.cc has them with their dates. `cores` counts on the CPU only;
// `memory` as for RecomputeOf() of memory/memory.h.
//
// A step on a GPU takes at least 1/3 ms per layer and pass (passes.h), because its kernels start
// one after another, however small they are. Derived from one measurement: m7c with checkpointing
// (12 layers, 2 passes) has about 2,110 graph nodes in a step, and 8 ms of the 28 ms of a step on
// an H200 were latency. 8 ms / (12 · 2) = 1/3 ms.
double ExpectedTokensPerSecond(const v1::JobSpec& spec, const std::string& device_name, int cores,
                               int64_t memory = 0);

// Where that figure comes from: "H200, measured 2026-11-27", "L40S, from its data sheet", "2 CPU
// cores, measured 2026-11-20".
std::string SpeedSource(const std::string& device_name, int cores);

}  // namespace nsa
