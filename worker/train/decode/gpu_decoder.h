// The decoder on a GPU, in bf16: at most kDecodeRows tokens at a time, block after block. Every
// call waits for the GPU. A single token is one CUDA graph, from the copy of what it reads to that
// of its logits, which is captured again whenever the sequence has doubled. Tokens that complete a
// compression block have a graph of their own, with the kernels of compression.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/nsa/branch.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/decode/document_starts.h"
#include "worker/train/decode/sequence_memory.h"
#include "worker/train/model/block/block.h"
#include "worker/train/model/model_config.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

class GpuDecoder final : public Decoder {
 public:
  // As Decoder::Create(); `parameters` have a bf16 copy. ResourceExhausted when the GPU has too
  // little free memory for the caches.
  static absl::StatusOr<std::unique_ptr<GpuDecoder>> Create(const Exec& exec,
                                                            const v1::JobSpec& spec,
                                                            const Arena* parameters,
                                                            const DecoderOptions& options);

  absl::StatusOr<std::span<const float>> Prefill(std::span<const int32_t> tokens) override;
  absl::StatusOr<std::span<const float>> PrefillEach(std::span<const int32_t> tokens) override;
  void Reset() override;

  int32_t context() const override { return config_.attention.shape.seq_len; }
  int32_t tokens() const override { return static_cast<int32_t>(position_); }
  absl::StatusOr<std::array<int64_t, kBranches>> keys_read(int32_t layer) const override;
  int64_t bytes() const override { return memory_.bytes(); }

 private:
  GpuDecoder(const Exec& exec, const ModelConfig& config, const DecoderOptions& options,
             const Arena* parameters);
  absl::Status Allocate();
  absl::StatusOr<DecodeInputs> Append(std::span<const int32_t> tokens);
  absl::Status ReadRows(std::span<const int32_t> tokens);
  absl::Status EnqueueRows(std::span<const int32_t> starts, int64_t first, bool completes_block);
  absl::Status EnqueueHead(int64_t first, int64_t rows);
  absl::StatusOr<std::span<const float>> Head(int64_t first, int64_t rows);
  bool CompletesBlock() const;
  int64_t PlannedTokens() const;
  bool IsGraph(std::span<const int32_t> tokens) const;
  absl::StatusOr<std::span<const float>> RunGraph(std::span<const int32_t> token);
  absl::Status EnqueueGraph(const DecodeInputs& inputs, int64_t last, bool completes_block,
                            uint16_t* logits);
  std::span<const float> ToLogits(std::span<const uint16_t> fetched);
  int64_t LogitBytes(int64_t rows) const {
    return rows * config_.vocab * static_cast<int64_t>(sizeof(uint16_t));
  }
  Tensor KeysRead(int32_t layer) const;
  ConstTensor Weight(const Place& place) const {
    return parameters_.weight(place.offset, place.size);
  }

  const Exec exec_;
  const ModelConfig config_;
  const Arena& parameters_;
  const ModelPlaces places_;
  SequenceMemory memory_;
  std::vector<uint16_t> fetched_;  // logits as the GPU has them
  std::vector<float> logits_;

  cuda::PinnedMemory of_one_row_;  // a DecodeInputs, then logits: what its graph copies
  struct OneRow {
    cuda::Graph graph;
    int64_t planned = 0;  // the graph serves positions below this
    // The kernels for positions below this ran without a graph, so that they are loaded and can be
    // captured. It doubles with the sequence: longer ones need other kernels.
    int64_t ran = 0;
  };
  OneRow one_row_[2];  // of tokens that complete no compression block, and of those that do

  int64_t position_ = 0;  // of the next token
  DocumentStarts documents_;
  bool clear_keys_read_ = true;  // before the next tokens
};

}  // namespace nsa::train
