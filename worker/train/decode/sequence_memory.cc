#include "worker/train/decode/sequence_memory.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/nsa/decode/attend_rows.h"
#include "kernels/nsa/layer/projections.h"

namespace nsa::train {

SequenceMemory::SequenceMemory(const ModelConfig& config, Backend backend, bool documents)
    : backend_(backend), documents_(documents) {
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    caches_.emplace_back(config.AttentionOf(layer), &arena_);
  }
  const DType type = config.attention.dtype;
  const bool on_gpu = backend == Backend::kCuda;
  const int64_t rows =
      on_gpu ? kDecodeRows : std::min<int64_t>(kDecodeRows, config.attention.shape.seq_len);
  Plan(&work_.x, rows * config.dim, type);
  Plan(&work_.mid, rows * config.dim, type);
  Plan(&work_.h, rows * config.dim, type);
  Plan(&work_.u, rows * config.mlp_inputs(), type);
  if (config.swiglu) Plan(&work_.units, rows * config.hidden, type);
  Plan(&work_.logits, (on_gpu ? rows : 1) * config.vocab, type);
  PlanAttention(config.attention, rows);
  if (on_gpu) {
    PlanForGpu(config, rows);
  } else {
    PlanForCpu(config.attention, rows);
  }
}

// The configuration has every branch that any layer has, so its tensors are the largest.
void SequenceMemory::PlanAttention(const NsaLayerConfig& config, int64_t rows) {
  const NsaShape& shape = config.shape;
  const int64_t heads = shape.n_heads, groups = shape.n_kv_groups;
  const DType type = config.dtype;
  Plan(&work_.wide, rows * ProjectionWidth(config), type);
  Plan(&work_.q, rows * heads * shape.d_k, type);
  Plan(&work_.q_rotated, rows * heads * shape.d_k, type);
  Plan(&work_.o, rows * heads * shape.d_v, type);
  if (config.has(kSel)) Plan(&work_.blocks, rows * groups * shape.n_sel, DType::kI32);
  if (config.has_phi()) {
    const int64_t units = MostNewBlocks(shape) * groups;
    Plan(&work_.hidden_k, units * PhiHidden(shape.d_k), type);
    Plan(&work_.hidden_v, units * PhiHidden(shape.d_v), type);
  }
}

void SequenceMemory::PlanForCpu(const NsaLayerConfig& config, int64_t rows) {
  const NsaShape& shape = config.shape;
  const int64_t heads = shape.n_heads, groups = shape.n_kv_groups;
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    Plan(&work_.o_c[c], rows * heads * shape.d_v, config.dtype);
    Plan(&work_.lse[c], rows * heads, DType::kF32);
  }
  Plan(&work_.gates, rows * groups * kBranches, DType::kF32);
  if (!config.has(kSel)) return;
  const int64_t most = std::min<int64_t>(shape.seq_len, int64_t{shape.n_sel} * shape.l_sel);
  Plan(&work_.near_k, most * groups * shape.d_k, config.dtype);
  Plan(&work_.near_v, most * groups * shape.d_v, config.dtype);
}

void SequenceMemory::PlanForGpu(const ModelConfig& config, int64_t rows) {
  Plan(&work_.inputs, sizeof(DecodeInputs) / sizeof(int32_t), DType::kI32);
  Plan(&work_.attention,
       AttendCachedScratchBytes(config.attention, rows, config.attention.shape.seq_len),
       DType::kU8);
  Plan(&work_.keys_read, int64_t{config.n_layers} * kBranches, DType::kI64);
}

void SequenceMemory::Plan(Tensor* tensor, int64_t size, DType type) {
  planned_.emplace_back(tensor, arena_.Plan(size, type));
}

absl::Status SequenceMemory::Allocate() {
  NSA_RETURN_IF_ERROR(arena_.Allocate(backend_));
  for (const auto& [tensor, slot] : planned_) *tensor = arena_[slot];
  for (LayerCache& cache : caches_) cache.Bind(arena_);
  if (work_.inputs.wanted()) NameInputs();
  return absl::OkStatus();
}

void SequenceMemory::NameInputs() {
  auto* const inputs = static_cast<DecodeInputs*>(work_.inputs.data);
  work_.at = Tensor(inputs->at, 1 + kBranches, DType::kI32);
  work_.tokens = Tensor(inputs->tokens, kDecodeRows, DType::kI32);
  if (documents_) work_.doc_start = Tensor(inputs->doc_start, kDecodeRows, DType::kI32);
}

absl::Status SequenceMemory::Append(const Exec& exec, int64_t rows) {
  for (LayerCache& cache : caches_) NSA_RETURN_IF_ERROR(cache.Append(exec, rows));
  return absl::OkStatus();
}

absl::Status SequenceMemory::AppendBlock(const Exec& exec) {
  for (LayerCache& cache : caches_) NSA_RETURN_IF_ERROR(cache.AppendBlock(exec));
  return absl::OkStatus();
}

std::array<int32_t, kBranches> SequenceMemory::begins() const {
  std::array<int32_t, kBranches> result = {};
  for (const LayerCache& cache : caches_) {
    for (int c = 0; c < kBranches; ++c) {
      if (cache.k[c].wanted()) result[c] = static_cast<int32_t>(cache.k[c].begin());
    }
  }
  return result;
}

void SequenceMemory::Clear() {
  for (LayerCache& cache : caches_) cache.Clear();
}

}  // namespace nsa::train
