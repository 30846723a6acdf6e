#include "worker/train/model/statistics/token_losses.h"

#include "common/base/status.h"

namespace nsa::train {

void TokenLosses::Plan(int64_t rows, int32_t micro_batches, bool keep, ActivationArena* arena) {
  rows_ = rows;
  keep_ = keep;
  block_ = arena->Plan(rows * (keep ? micro_batches : 1));
}

absl::Status TokenLosses::Allocate(const ActivationArena& arena, Backend backend) {
  if (!keep_ || backend == Backend::kCpu) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(arena[block_].as<float>().size_bytes());
  NSA_ASSIGN_OR_RETURN(host_, cuda::PinnedMemory::Allocate(bytes, "token losses"));
  return absl::OkStatus();
}

std::span<float> TokenLosses::Device(const ActivationArena& arena, int32_t micro_batch) const {
  return arena[block_].as<float>().subspan(keep_ ? micro_batch * rows_ : 0, rows_);
}

absl::Status TokenLosses::Enqueue(const Exec& exec, const ActivationArena& arena) const {
  if (host_.data() == nullptr) return absl::OkStatus();
  const std::span<const float> losses = arena[block_].as<float>();
  return cuda::CopyBytes(exec.stream, host_.data(), losses.data(),
                         static_cast<int64_t>(losses.size_bytes()));
}

std::span<const float> TokenLosses::Host(const ActivationArena& arena, int32_t micro_batch) const {
  if (host_.data() == nullptr) return Device(arena, micro_batch);
  const auto* const all = static_cast<const float*>(host_.data());
  return {all + micro_batch * rows_, static_cast<size_t>(rows_)};
}

}  // namespace nsa::train
