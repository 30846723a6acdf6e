// All memory of a decoder: the caches of its sequences, layer by layer, and the workspace of the
// tokens that are being computed, at most kDecodeRows at a time, all of one sequence. On a GPU,
// each sequence also has a workspace for a single token, so that those of several can be computed
// at the same time.
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
  int32_t at_all[1 + kBranches];  // the same in layers whose window is the whole context
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
  Tensor inputs;                         // a DecodeInputs, as int32
  Tensor at, at_all, tokens, doc_start;  // its parts; no doc_start in a model without a document
                                         // mask
  Tensor attention;                      // scratch of AttendCached()
};

struct SequenceOptions {
  bool documents = false;  // the model has a document mask
  int32_t slots = 1;       // sequences
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
  // Plans the memory on the device of `backend`; the shape's seq_len is the most tokens of a
  // sequence.
  SequenceMemory(const ModelConfig& config, Backend backend, const SequenceOptions& options = {});
  SequenceMemory(const SequenceMemory&) = delete;  // tensors are filled in by their address
  SequenceMemory& operator=(const SequenceMemory&) = delete;

  absl::Status Allocate();

  // Forgets the sequence of a slot.
  void Clear(int32_t slot);

  // Makes room for `rows` more tokens in the slot's caches of all layers.
  absl::Status Append(const Exec& exec, int32_t slot, int64_t rows);

  // Makes room for one more compression block in all layers that have them.
  absl::Status AppendBlock(const Exec& exec, int32_t slot);

  // Position of the first token that the slot's caches of each branch hold. It is the same in all
  // layers that have the branch, apart from those whose window is the whole context: it is 0 there.
  std::array<int32_t, kBranches> begins(int32_t slot) const;

  LayerCache* cache(int32_t slot, int32_t layer) { return &caches_[slot][layer]; }
  // Of kDecodeRows tokens.
  const DecodeWork& work() const { return work_; }
  // On a GPU: of one token of the slot.
  const DecodeWork& work_of_one(int32_t slot) const { return work_of_one_[slot]; }
  // On a GPU: int64 [kBranches], keys that a layer has read for the slot's sequence. Those of the
  // next layer follow.
  Tensor keys_read(int32_t slot, int32_t layer) const;
  int64_t bytes() const { return arena_.bytes(); }

 private:
  using Slot = ActivationArena::Slot;

  // Plans a tensor, which is `tensor` once the memory is allocated.
  void Plan(Tensor* tensor, int64_t size, DType type);
  void PlanWork(const ModelConfig& config, int64_t rows, DecodeWork* work);
  void PlanAttention(const NsaLayerConfig& config, int64_t rows, DecodeWork* work);
  void PlanForCpu(const NsaLayerConfig& config, int64_t rows, DecodeWork* work);
  void PlanForGpu(const ModelConfig& config, int64_t rows, DecodeWork* work);
  void NameInputs(DecodeWork* work) const;

  const Backend backend_;
  const SequenceOptions options_;
  ActivationArena arena_;
  std::vector<std::vector<LayerCache>> caches_;  // of each slot, by layer
  DecodeWork work_;
  std::vector<DecodeWork> work_of_one_;  // on a GPU, by slot
  Tensor keys_read_;                     // on a GPU: int64 [slots, layers, kBranches]
  std::vector<std::pair<Tensor*, Slot>> planned_;
};

}  // namespace nsa::train
