// What a step leaves for the host to read: the loss and the statistics of every layer of each
// micro-batch, in one block, so that one copy brings them all.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"
#include "kernels/nsa/attention.h"
#include "worker/train/activations.h"
#include "worker/train/block.h"

namespace nsa {

// As the kernels write it.
struct LayerReadout {
  std::array<float, kGateStats> gate;
  std::array<int64_t, kSelectionStats> selection;
  std::array<int64_t, kBranches> keys_read;
};

class Readout {
 public:
  // Plans the device's block in `arena`.
  void Plan(int32_t micro_batches, int32_t layers, ActivationArena* arena);
  // Takes the host's, where the device's memory is not the host's.
  absl::Status Allocate(Backend backend);

  Tensor Loss(const ActivationArena& arena, int32_t micro_batch) const;
  // Where a layer's kernels write; tensors of what the model lacks are empty.
  BlockStatistics Layer(const ActivationArena& arena, const AttentionConfig& config,
                        int32_t micro_batch, int32_t layer) const;
  int64_t loss_stride() const { return bytes_ / static_cast<int64_t>(sizeof(float)); }

  // Enqueues the copy.
  absl::Status Enqueue(const Exec& exec, const ActivationArena& arena) const;

  // What has arrived.
  float ReadLoss(const ActivationArena& arena, int32_t micro_batch) const;
  LayerReadout ReadLayer(const ActivationArena& arena, int32_t micro_batch, int32_t layer) const;

 private:
  std::byte* Host(const ActivationArena& arena) const;

  int64_t bytes_ = 0;  // of one micro-batch
  ActivationArena::Slot block_;
  cuda::PinnedMemory host_;
};

}  // namespace nsa
