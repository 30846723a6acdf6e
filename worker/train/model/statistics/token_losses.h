// The losses of a step's tokens: −log p(target) of every position. They are kept until the next
// step if somebody asks for them; otherwise all micro-batches share the memory of one.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"
#include "worker/train/model/activations.h"

namespace nsa::train {

class TokenLosses {
 public:
  // Plans device memory in `arena`: for `rows` tokens of each micro-batch, or of one unless `keep`.
  void Plan(int64_t rows, int32_t micro_batches, bool keep, ActivationArena* arena);
  // Allocates the host's copy, if it is kept on a GPU.
  absl::Status Allocate(const ActivationArena& arena, Backend backend);

  // Where the kernels write those of a micro-batch.
  std::span<float> Device(const ActivationArena& arena, int32_t micro_batch) const;

  // Enqueues the copy to the host; nothing without one.
  absl::Status Enqueue(const Exec& exec, const ActivationArena& arena) const;

  // Those of a micro-batch in host memory; on a GPU after the copy is done.
  std::span<const float> Host(const ActivationArena& arena, int32_t micro_batch) const;

 private:
  int64_t rows_ = 0;
  bool keep_ = false;
  ActivationArena::Slot block_;
  cuda::PinnedMemory host_;
};

}  // namespace nsa::train
