#include "worker/train/decode/checks.h"

#include <bitset>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nsa::train {

absl::StatusOr<ModelConfig> ConfigOf(const v1::JobSpec& spec, const DecoderOptions& options,
                                     Backend backend) {
  if (options.slots < 1 || options.slots > Decoder::kMostSlots) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "decode: %d slots (from 1 to %d); ask for fewer", options.slots, Decoder::kMostSlots));
  }
  ModelConfig config = ModelConfigOf(spec);
  config.attention.shape.batch = 1;
  config.attention.shape.seq_len = options.context;
  if (backend == Backend::kCuda) config.attention.dtype = DType::kBf16;
  NSA_RETURN_IF_ERROR(Annotate(config.Validate(backend), "decode"));
  return config;
}

absl::Status CheckTokens(std::span<const int32_t> tokens, int64_t position, int32_t context,
                         int32_t vocab) {
  if (tokens.empty()) {
    return absl::InvalidArgumentError("decode: 0 tokens (at least 1); begin with a separator");
  }
  if (static_cast<int64_t>(tokens.size()) > context - position) {
    return absl::OutOfRangeError(absl::StrFormat(
        "decode: %d tokens after %d (context: %d); reset, or create a decoder with a larger "
        "context",
        tokens.size(), position, context));
  }
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "decode: token: %d (from 0 to %d); use the job's tokenizer", token, vocab - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckEach(std::span<const int32_t> tokens, int64_t position, int32_t context,
                       int32_t vocab) {
  NSA_RETURN_IF_ERROR(CheckTokens(tokens, position, context, vocab));
  if (static_cast<int64_t>(tokens.size()) <= Decoder::kMostRows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "decode: %d tokens at once (from 1 to %d); divide them", tokens.size(), Decoder::kMostRows));
}

absl::Status CheckStep(std::span<const SlotToken> tokens, const Decoder& decoder) {
  if (tokens.empty()) return absl::InvalidArgumentError("decode: a step of 0 slots (at least 1)");
  std::bitset<Decoder::kMostSlots> seen;
  for (const auto& [slot, token] : tokens) {
    if (slot < 0 || slot >= decoder.slots() || seen[slot]) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "decode: slot %d of a step (from 0 to %d, each once)", slot, decoder.slots() - 1));
    }
    seen.set(slot);
    NSA_RETURN_IF_ERROR(
        CheckTokens({&token, 1}, decoder.tokens(slot), decoder.context(), decoder.vocab()));
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
