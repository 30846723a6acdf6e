// Memory and time of the texts that a job writes while it trains (`sample` in the job file). Pure.
#pragma once

#include <cstdint>

#include "nsa/v1/job.pb.h"

namespace nsa {

// Tokens that the model sees of the longest text, at most: the separator, the prompt, whose tokens
// have a byte each or more, and those that are drawn; no more than train.seq_len. 0 without
// prompts.
int64_t SampleContext(const v1::JobSpec& spec);

// Memory of the decoder of that text on rank 0 (worker/train/decode/sequence_memory.h), in bytes.
// It is there only while texts are written. 0 without prompts.
int64_t SampleBytes(const v1::JobSpec& spec);

// Expected seconds of all texts of one validation, in which training waits; 0 without prompts.
// A token takes on a GPU 33 µs a layer, the time to start its kernels, and reads the bf16 weights
// at 1 TB/s: 0.39 ms measured for 78 million parameters in 12 layers on an H100, where this gives
// 0.55. On the CPU it reads the fp32 weights at 10 GB/s: 0.09 to 0.15 ms for 0.49 million
// parameters, where this gives 0.2 (docs/measured.md). A prompt counts as half of its tokens.
double SampleSeconds(const v1::JobSpec& spec);

// The share of restart.hang_timeout_seconds that the texts of one validation may take: the other
// ranks wait for rank 0, and a rank that waits makes no progress.
inline constexpr double kSampleShareOfTimeout = 0.25;

}  // namespace nsa
