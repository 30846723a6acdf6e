#include "worker/train/model/statistics/readout.h"

#include <cstddef>
#include <cstring>

#include "common/base/status.h"

namespace nsa::train {
namespace {

constexpr int64_t kLossBytes = 64;
constexpr int64_t kLayerBytes = 128;
static_assert(sizeof(LayerReadout) <= kLayerBytes);

}  // namespace

void Readout::Plan(int32_t micro_batches, int32_t layers, ActivationArena* arena) {
  bytes_ = kLossBytes + layers * kLayerBytes;
  block_ = arena->Plan(micro_batches * bytes_, DType::kU8);
}

absl::Status Readout::Allocate(Backend backend) {
  if (backend == Backend::kCpu) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(host_, cuda::PinnedMemory::Allocate(block_.size, "statistics"));
  return absl::OkStatus();
}

Tensor Readout::Loss(const ActivationArena& arena, int32_t micro_batch) const {
  return {static_cast<std::byte*>(arena[block_].data) + micro_batch * bytes_, 1, DType::kF32};
}

Tensor Readout::All(const ActivationArena& arena, int32_t micro_batch) const {
  return {static_cast<std::byte*>(arena[block_].data) + micro_batch * bytes_, bytes_, DType::kU8};
}

BlockStatistics Readout::Layer(const ActivationArena& arena, const NsaLayerConfig& config,
                               int32_t micro_batch, int32_t layer) const {
  std::byte* const at = static_cast<std::byte*>(arena[block_].data) + micro_batch * bytes_ +
                        kLossBytes + layer * kLayerBytes;
  BlockStatistics statistics;
  if (config.has_gate()) {
    statistics.gate = {at + offsetof(LayerReadout, gate), kGateStats, DType::kF32};
  }
  if (config.has(kSel)) {
    statistics.selection = {at + offsetof(LayerReadout, selection), kSelectionStats, DType::kI64};
  }
  statistics.keys_read = {at + offsetof(LayerReadout, keys_read), kBranches, DType::kI64};
  statistics.zeroed = true;
  return statistics;
}

absl::Status Readout::Enqueue(const Exec& exec, const ActivationArena& arena) const {
  if (exec.backend == Backend::kCpu) return absl::OkStatus();
  return cuda::CopyBytes(exec.stream, host_.data(), arena[block_].data, block_.size);
}

std::byte* Readout::Host(const ActivationArena& arena) const {
  return static_cast<std::byte*>(host_.data() != nullptr ? host_.data() : arena[block_].data);
}

float Readout::ReadLoss(const ActivationArena& arena, int32_t micro_batch) const {
  float loss = 0;
  std::memcpy(&loss, Host(arena) + micro_batch * bytes_, sizeof(loss));
  return loss;
}

LayerReadout Readout::ReadLayer(const ActivationArena& arena, int32_t micro_batch,
                                int32_t layer) const {
  LayerReadout readout;
  std::memcpy(&readout, Host(arena) + micro_batch * bytes_ + kLossBytes + layer * kLayerBytes,
              sizeof(readout));
  return readout;
}

}  // namespace nsa::train
