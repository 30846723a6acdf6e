// Proof that all ranks of a job have the same parameters: each step that is a multiple of
// guard.hash_every, and the last one, has a hash of them in its record (kernels/optimizer/
// parameters_hash.h), and the ranks compare theirs (StepExecutor::ParametersHash()).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/comm/comm.h"
#include "worker/train/model/state.h"

namespace nsa::train {

// Whether step `step` is a multiple of guard.hash_every, which is 100 where it is not set. With 0
// no step is one.
bool HashesAfter(const v1::GuardSpec& guard, int64_t step);

// The hashes of all ranks, in rank order. A collective of 16 bytes a rank.
absl::StatusOr<std::vector<uint64_t>> ExchangeHashes(Comm* comm, uint64_t mine);

// What the event PARAMETERS_DIFFER says after step `step` of `job` (its id): which ranks have which
// hash, the most common first, and what to do. Nothing where all hashes are equal.
std::optional<std::string> DifferenceText(std::span<const uint64_t> hashes, int64_t step,
                                          const std::string& job);

// For tests of wrong hardware: whether NSA_TEST_FLIP_BIT_AT_STEP=STEP,RANK in the environment names
// this step and rank. Only in the first start of a job.
bool FlipsBitAfter(int64_t step, int32_t rank, int64_t generation);

// Flips one bit of the last tensor's first parameter, in the memory of the state's device; of its
// bf16 copy where a GPU has fp32 weights of its share only.
absl::Status FlipBit(const Exec& exec, ModelState* state);

}  // namespace nsa::train
