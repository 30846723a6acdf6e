// The decoder on a GPU, in bf16: at most kDecodeRows tokens of one slot at a time, block after
// block. Every call waits for the GPU. A single token is one CUDA graph, from the copy of what it
// reads to that of its logits, which is captured again whenever the sequence has doubled. Tokens
// that complete a compression block have a graph of their own, with the kernels of compression.
//
// A single token uses the stream and the workspace of its slot, so the graphs of a step run at the
// same time. The kernels of one row are short and depend on one another; those of other slots fill
// the GPU meanwhile, and find weights in its cache that another slot has just read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/nsa/branch.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"
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

  absl::StatusOr<std::span<const float>> Prefill(int32_t slot,
                                                 std::span<const int32_t> tokens) override;
  absl::StatusOr<std::span<const float>> PrefillEach(int32_t slot,
                                                     std::span<const int32_t> tokens) override;
  absl::StatusOr<std::span<const float>> Step(std::span<const SlotToken> tokens) override;
  void Reset(int32_t slot) override;

  int32_t vocab() const override { return config_.vocab; }
  int32_t context() const override { return config_.attention.shape.seq_len; }
  int32_t slots() const override { return static_cast<int32_t>(sequences_.size()); }
  int32_t tokens(int32_t slot) const override {
    return static_cast<int32_t>(sequences_[slot].position);
  }
  absl::StatusOr<std::array<int64_t, kBranches>> keys_read(int32_t slot,
                                                           int32_t layer) const override;
  int64_t bytes() const override { return memory_.bytes(); }

 private:
  GpuDecoder(const Exec& exec, const ModelConfig& config, const DecoderOptions& options,
             const Arena* parameters);
  absl::Status Allocate();
  absl::StatusOr<DecodeInputs> Append(const Exec& exec, int32_t slot,
                                      std::span<const int32_t> tokens);
  absl::Status ReadRows(int32_t slot, std::span<const int32_t> tokens);
  absl::StatusOr<std::span<const float>> ReadTokens(std::span<const SlotToken> tokens);
  absl::Status BeginToken(const SlotToken& next);
  absl::Status EnqueueToken(const Exec& exec, int32_t slot, bool completes_block);
  struct Rows {
    const DecodeWork& work;
    int32_t slot;
    std::span<const int32_t> doc_start;
    int64_t first;  // the last position that the first of them may have
    bool completes_block = false;
  };
  absl::Status EnqueueRows(const Exec& exec, const Rows& rows);
  absl::Status EnqueueHead(const Exec& exec, const DecodeWork& work, int64_t first, int64_t rows);
  absl::StatusOr<std::span<const float>> Head(int64_t first, int64_t rows);
  bool CompletesBlock(int64_t position) const;
  int64_t PlannedTokens(int64_t position) const;
  int64_t LogitBytes(int64_t rows) const {
    return rows * config_.vocab * static_cast<int64_t>(sizeof(uint16_t));
  }
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

  struct OneToken {
    cuda::Graph graph;
    int64_t planned = 0;  // the graph serves positions below this
    // The kernels for positions below this ran without a graph, so that they are loaded and can be
    // captured. It doubles with the sequence: longer ones need other kernels.
    int64_t ran = 0;
  };
  struct Sequence {
    explicit Sequence(std::optional<int32_t> separator) : documents(separator) {}

    DecodeInputs* inputs() const { return static_cast<DecodeInputs*>(pinned.data()); }
    uint16_t* logits() const { return reinterpret_cast<uint16_t*>(inputs() + 1); }

    cuda::Stream stream;        // of single tokens
    cuda::PinnedMemory pinned;  // a DecodeInputs, then logits: what a single token copies
    OneToken one_token[2];      // that completes no compression block, and that completes one
    int64_t position = 0;       // of the next token
    DocumentStarts documents;
    bool clear_keys_read = true;  // before the next tokens
  };
  cuda::Event before_;               // everything on exec_.stream before the single tokens
  std::vector<Sequence> sequences_;  // by slot
};

}  // namespace nsa::train
