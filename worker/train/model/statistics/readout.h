// The results of a step that the host reads: for each micro-batch the loss and the statistics of
// every layer. They are in one block of memory, so that a single copy transfers them all.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "worker/train/model/activations.h"
#include "worker/train/model/block/block.h"

namespace nsa::train {

// The format that the kernels write.
struct LayerReadout {
  std::array<float, kGateStats> gate;
  std::array<int64_t, kSelectionStats> selection;
  std::array<int64_t, kBranches> keys_read;
};

class Readout {
 public:
  // Plans the block of device memory in `arena`.
  void Plan(int32_t micro_batches, int32_t layers, ActivationArena* arena);
  // Allocates the host's copy; on the CPU there is none.
  absl::Status Allocate(Backend backend);

  Tensor Loss(const ActivationArena& arena, int32_t micro_batch) const;
  // All results of a micro-batch. To be zeroed before its first layer runs.
  Tensor All(const ActivationArena& arena, int32_t micro_batch) const;
  // Where the kernels of a layer write. The tensors of parts that the model lacks are empty.
  BlockStatistics Layer(const ActivationArena& arena, const NsaLayerConfig& config,
                        int32_t micro_batch, int32_t layer) const;
  int64_t loss_stride() const { return bytes_ / static_cast<int64_t>(sizeof(float)); }

  // Enqueues the copy to the host.
  absl::Status Enqueue(const Exec& exec, const ActivationArena& arena) const;

  // Read values on the host, after the copy is done.
  float ReadLoss(const ActivationArena& arena, int32_t micro_batch) const;
  LayerReadout ReadLayer(const ActivationArena& arena, int32_t micro_batch, int32_t layer) const;

 private:
  std::byte* Host(const ActivationArena& arena) const;

  int64_t bytes_ = 0;  // of one micro-batch
  ActivationArena::Slot block_;
  cuda::PinnedMemory host_;
};

}  // namespace nsa::train
