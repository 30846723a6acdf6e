// What the decoders of both devices refuse, with the same words.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {

// The configuration for one sequence of at most options.context tokens. InvalidArgument when the
// number of slots is out of range, or the shape outside the limits of the kernels of `backend`.
absl::StatusOr<ModelConfig> ConfigOf(const v1::JobSpec& spec, const DecoderOptions& options,
                                     Backend backend);

// The errors of Decoder::Prefill() for tokens that follow `position` others.
absl::Status CheckTokens(std::span<const int32_t> tokens, int64_t position, int32_t context,
                         int32_t vocab);

// The same, and that of Decoder::PrefillEach().
absl::Status CheckEach(std::span<const int32_t> tokens, int64_t position, int32_t context,
                       int32_t vocab);

// The errors of Decoder::Step().
absl::Status CheckStep(std::span<const SlotToken> tokens, const Decoder& decoder);

}  // namespace nsa::train
