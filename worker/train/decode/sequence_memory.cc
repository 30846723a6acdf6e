#include "worker/train/decode/sequence_memory.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/nsa/layer/projections.h"

namespace nsa::train {

SequenceMemory::SequenceMemory(const ModelConfig& config) {
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    caches_.emplace_back(config.AttentionOf(layer), &arena_);
  }
  const int64_t rows = std::min<int64_t>(kDecodeRows, config.attention.shape.seq_len);
  Plan(&work_.x, rows * config.dim);
  Plan(&work_.mid, rows * config.dim);
  Plan(&work_.h, rows * config.dim);
  Plan(&work_.u, rows * config.hidden);
  Plan(&work_.logits, config.vocab);
  PlanAttention(config.attention, rows);
}

// The configuration has every branch that any layer has, so its tensors are the largest.
void SequenceMemory::PlanAttention(const NsaLayerConfig& config, int64_t rows) {
  const NsaShape& shape = config.shape;
  const int64_t heads = shape.n_heads, groups = shape.n_kv_groups;
  Plan(&work_.wide, rows * ProjectionWidth(config));
  Plan(&work_.q, rows * heads * shape.d_k);
  Plan(&work_.q_rotated, rows * heads * shape.d_k);
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    Plan(&work_.o_c[c], rows * heads * shape.d_v);
    Plan(&work_.lse[c], rows * heads);
  }
  Plan(&work_.gates, rows * groups * kBranches);
  Plan(&work_.o, rows * heads * shape.d_v);
  if (config.has(kSel)) {
    const int64_t most = std::min<int64_t>(shape.seq_len, int64_t{shape.n_sel} * shape.l_sel);
    Plan(&work_.blocks, rows * groups * shape.n_sel, DType::kI32);
    Plan(&work_.near_k, most * groups * shape.d_k);
    Plan(&work_.near_v, most * groups * shape.d_v);
  }
  if (config.has_phi()) {
    const int64_t units = MostNewBlocks(shape) * groups;
    Plan(&work_.hidden_k, units * PhiHidden(shape.d_k));
    Plan(&work_.hidden_v, units * PhiHidden(shape.d_v));
  }
}

void SequenceMemory::Plan(Tensor* tensor, int64_t size, DType type) {
  planned_.emplace_back(tensor, arena_.Plan(size, type));
}

absl::Status SequenceMemory::Allocate() {
  NSA_RETURN_IF_ERROR(arena_.Allocate(Backend::kCpu));
  for (const auto& [tensor, slot] : planned_) *tensor = arena_[slot];
  for (LayerCache& cache : caches_) cache.Bind(arena_);
  return absl::OkStatus();
}

void SequenceMemory::Clear() {
  for (LayerCache& cache : caches_) cache.Clear();
}

}  // namespace nsa::train
