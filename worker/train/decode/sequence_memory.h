// All memory of a decoder: the caches of its layers, and the workspace of the tokens that are being
// computed, at most kDecodeRows at a time.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"
#include "worker/train/decode/layer_cache.h"
#include "worker/train/model/activations.h"
#include "worker/train/model/model_config.h"

namespace nsa::train {

// What the kernels of a GPU read of the new tokens. One copy brings it there.
struct DecodeInputs {
  int32_t at[1 + kBranches];  // position of the first row, and of the first row that the caches of
                              // a branch hold
  int32_t tokens[kDecodeRows];
  int32_t doc_start[kDecodeRows];  // in a model with a document mask
};

// R rows of new tokens. Each tensor holds nothing between layers, except x.
struct DecodeWork {
  Tensor x;                   // [R, D], the residual stream
  Tensor mid;                 // [R, D]
  Tensor h;                   // [R, D], normalised
  Tensor wide;                // [R, width], all projections
  Tensor q, q_rotated;        // [R, H·dk]
  Tensor o;                   // [R, H·dv]
  Tensor u;                   // [R, mlp_inputs]
  Tensor units;               // [R, hidden], with SwiGLU
  Tensor blocks;              // int32 [R, G·n]
  Tensor hidden_k, hidden_v;  // of φ mlp
  Tensor logits;              // [V]; on a GPU [R, V]
  // On the CPU:
  std::array<Tensor, kBranches> o_c;  // [R, H·dv], of each branch
  std::array<Tensor, kBranches> lse;  // [R, H]
  Tensor gates;                       // [R, G·n_b]
  Tensor near_k, near_v;              // [n·l', G·(dk or dv)], the rows that one token selected
  // On a GPU:
  Tensor inputs;                 // a DecodeInputs, as int32
  Tensor at, tokens, doc_start;  // its parts; no doc_start in a model without a document mask
  Tensor attention;              // scratch of AttendCached()
  Tensor keys_read;              // int64 [layers, kBranches]
};

// The first `size` elements of a tensor that has memory for more rows. One without memory has none.
inline Tensor Prefix(const Tensor& tensor, int64_t size) {
  return {tensor.data, tensor.wanted() ? size : 0, tensor.dtype};
}
inline ConstTensor Prefix(const ConstTensor& tensor, int64_t size) {
  return {tensor.data, tensor.wanted() ? size : 0, tensor.dtype};
}

class SequenceMemory {
 public:
  // Plans the memory on the device of `backend`; the shape's seq_len is the most tokens of the
  // sequence. `documents`: the model has a document mask.
  SequenceMemory(const ModelConfig& config, Backend backend, bool documents = false);
  SequenceMemory(const SequenceMemory&) = delete;  // tensors are filled in by their address
  SequenceMemory& operator=(const SequenceMemory&) = delete;

  absl::Status Allocate();

  // Forgets the sequence.
  void Clear();

  // Makes room for `rows` more tokens in the caches of all layers.
  absl::Status Append(const Exec& exec, int64_t rows);

  // Makes room for one more compression block in all layers that have them.
  absl::Status AppendBlock(const Exec& exec);

  // Position of the first token that the caches of each branch hold. It is the same in all layers
  // that have the branch.
  std::array<int32_t, kBranches> begins() const;

  LayerCache* cache(int32_t layer) { return &caches_[layer]; }
  const DecodeWork& work() const { return work_; }
  int64_t bytes() const { return arena_.bytes(); }

 private:
  using Slot = ActivationArena::Slot;

  // Plans a tensor of the workspace, which is `tensor` once the memory is allocated.
  void Plan(Tensor* tensor, int64_t size, DType type);
  void PlanAttention(const NsaLayerConfig& config, int64_t rows);
  void PlanForCpu(const NsaLayerConfig& config, int64_t rows);
  void PlanForGpu(const ModelConfig& config, int64_t rows);
  void NameInputs();

  const Backend backend_;
  const bool documents_;
  ActivationArena arena_;
  std::vector<LayerCache> caches_;
  DecodeWork work_;
  std::vector<std::pair<Tensor*, Slot>> planned_;
};

}  // namespace nsa::train
