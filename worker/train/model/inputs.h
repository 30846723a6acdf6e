// The micro-batches of a step on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"
#include "worker/train/model/activations.h"
#include "worker/train/model/model.h"

namespace nsa::train {

// Device and size of the inputs.
struct InputShape {
  Backend backend = Backend::kCpu;
  int32_t micro_batches = 1;
  int64_t rows = 0;           // tokens of a micro-batch on this rank: B·S/N with a context group
  int64_t document_rows = 0;  // of whole sequences, B·S
  int32_t vocab = 0;          // V
};

class Inputs {
 public:
  // Plans the device's memory in `arena`.
  Inputs(const InputShape& shape, ActivationArena* arena);

  // Allocates pinned memory for copies to a GPU; does nothing on the CPU.
  absl::Status Allocate();

  // Copies a micro-batch to the device. InvalidArgument when there is no such micro-batch, a size
  // is wrong or, on a GPU, a token is outside the vocabulary; on the CPU the kernels check that.
  absl::Status Load(const Exec& exec, const ActivationArena& arena, int32_t micro_batch,
                    const TokenBatch& batch);

  // The same for tokens without targets.
  absl::Status LoadTokens(const Exec& exec, const ActivationArena& arena, int32_t micro_batch,
                          std::span<const int32_t> tokens);

  // int32 [B, S/N].
  ConstTensor tokens(const ActivationArena& arena, int32_t micro_batch) const {
    return arena[batches_[micro_batch].tokens];
  }
  ConstTensor targets(const ActivationArena& arena, int32_t micro_batch) const {
    return arena[batches_[micro_batch].targets];
  }
  // int32 [B, S]; empty when the micro-batch was loaded without documents.
  ConstTensor doc_start(const ActivationArena& arena, int32_t micro_batch) const {
    const MicroBatch& batch = batches_[micro_batch];
    return batch.documents ? ConstTensor(arena[batch.doc_start]) : ConstTensor();
  }

  // Which micro-batches were loaded with documents.
  std::vector<bool> documents() const;

 private:
  struct MicroBatch {
    ActivationArena::Slot tokens, targets, doc_start;
    bool documents = false;
  };

  absl::Status Check(int32_t micro_batch, const TokenBatch& batch) const;
  absl::Status Copy(const Exec& exec, std::span<const int32_t> values, int64_t staged,
                    const Tensor& to);
  // Values of a micro-batch in the pinned memory.
  int64_t StagedRows() const { return 2 * shape_.rows + shape_.document_rows; }

  const InputShape shape_;
  std::vector<MicroBatch> batches_;
  cuda::PinnedMemory staging_;
};

}  // namespace nsa::train
