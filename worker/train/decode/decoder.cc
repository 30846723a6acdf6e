#include "worker/train/decode/decoder.h"

#include "common/base/status.h"
#include "worker/train/decode/checks.h"
#include "worker/train/decode/cpu_decoder.h"
#include "worker/train/decode/gpu_decoder.h"
#include "worker/train/decode/sequence_memory.h"

namespace nsa::train {

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const Exec& exec, const v1::JobSpec& spec,
                                                         const Arena* parameters,
                                                         const DecoderOptions& options) {
  if (exec.backend == Backend::kCuda) {
    return GpuDecoder::Create(exec, spec, parameters, options);
  }
  return CpuDecoder::Create(exec, spec, parameters, options);
}

absl::StatusOr<std::span<const float>> Decoder::Step(std::span<const SlotToken> tokens) {
  NSA_RETURN_IF_ERROR(CheckStep(tokens, *this));
  stepped_.clear();
  for (const auto& [slot, token] : tokens) {
    NSA_ASSIGN_OR_RETURN(const std::span<const float> logits, Prefill(slot, {&token, 1}));
    stepped_.insert(stepped_.end(), logits.begin(), logits.end());
  }
  return stepped_;
}

absl::StatusOr<int64_t> Decoder::BytesFor(const v1::JobSpec& spec, Backend backend,
                                          const DecoderOptions& options) {
  NSA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(spec, options, backend));
  return SequenceMemory(config, backend, {.slots = options.slots}).bytes();
}

}  // namespace nsa::train
