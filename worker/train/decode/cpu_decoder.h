// The decoder on the CPU, in fp32: at most kDecodeRows tokens of one slot at a time, block after
// block. A step computes its slots one after another, so it costs what they cost alone.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/nsa/branch.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/decode/document_starts.h"
#include "worker/train/decode/rotation.h"
#include "worker/train/decode/sequence_memory.h"
#include "worker/train/model/block/block.h"
#include "worker/train/model/model_config.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

class CpuDecoder final : public Decoder {
 public:
  // As Decoder::Create(); `parameters` are in host memory.
  static absl::StatusOr<std::unique_ptr<CpuDecoder>> Create(const Exec& exec,
                                                            const v1::JobSpec& spec,
                                                            const Arena* parameters,
                                                            const DecoderOptions& options);

  absl::StatusOr<std::span<const float>> Prefill(int32_t slot,
                                                 std::span<const int32_t> tokens) override;
  absl::StatusOr<std::span<const float>> PrefillEach(int32_t slot,
                                                     std::span<const int32_t> tokens) override;
  void Reset(int32_t slot) override;

  int32_t vocab() const override { return config_.vocab; }
  int32_t context() const override { return config_.attention.shape.seq_len; }
  int32_t slots() const override { return static_cast<int32_t>(sequences_.size()); }
  int32_t tokens(int32_t slot) const override {
    return static_cast<int32_t>(sequences_[slot].position);
  }
  absl::StatusOr<std::array<int64_t, kBranches>> keys_read(int32_t slot,
                                                           int32_t layer) const override {
    return sequences_[slot].keys_read[layer];
  }
  // BytesFor() the options, and what PrefillEach() has taken.
  int64_t bytes() const override {
    return memory_.bytes() + static_cast<int64_t>(each_.size() * sizeof(float));
  }

 private:
  CpuDecoder(const Exec& exec, const ModelConfig& config, const DecoderOptions& options,
             const Arena* parameters);
  absl::Status ReadRows(int32_t slot, std::span<const int32_t> tokens);
  absl::Status Head(int64_t first, int64_t rows, const Tensor& logits);
  ConstTensor Weight(const Place& place) const {
    return parameters_.weight(place.offset, place.size);
  }

  const Exec exec_;
  const ModelConfig config_;
  const Arena& parameters_;
  const ModelPlaces places_;
  SequenceMemory memory_;
  Rotation rotation_;
  std::vector<float> each_;  // [kMostRows, V], once PrefillEach() was called

  struct Sequence {
    int64_t position = 0;  // of the next token
    DocumentStarts documents;
    std::vector<std::array<int64_t, kBranches>> keys_read;  // by layer
  };
  std::vector<Sequence> sequences_;  // by slot
};

}  // namespace nsa::train
