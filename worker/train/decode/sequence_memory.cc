#include "worker/train/decode/sequence_memory.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/nsa/decode/attend_rows.h"
#include "kernels/nsa/layer/projections.h"

namespace nsa::train {

SequenceMemory::SequenceMemory(const ModelConfig& config, Backend backend,
                               const SequenceOptions& options)
    : backend_(backend), options_(options), caches_(options.slots) {
  for (std::vector<LayerCache>& layers : caches_) {
    for (int32_t layer = 0; layer < config.n_layers; ++layer) {
      layers.emplace_back(config.AttentionOf(layer), &arena_);
    }
  }
  if (backend == Backend::kCpu) {
    PlanWork(config, std::min<int64_t>(kDecodeRows, config.attention.shape.seq_len), &work_);
    return;
  }
  PlanWork(config, kDecodeRows, &work_);
  work_of_one_.resize(options.slots);
  for (DecodeWork& work : work_of_one_) PlanWork(config, 1, &work);
  Plan(&keys_read_, int64_t{options.slots} * config.n_layers * kBranches, DType::kI64);
}

void SequenceMemory::PlanWork(const ModelConfig& config, int64_t rows, DecodeWork* work) {
  const DType type = config.attention.dtype;
  const bool on_gpu = backend_ == Backend::kCuda;
  Plan(&work->x, rows * config.dim, type);
  Plan(&work->mid, rows * config.dim, type);
  Plan(&work->h, rows * config.dim, type);
  Plan(&work->u, rows * config.mlp_inputs(), type);
  if (config.swiglu) Plan(&work->units, rows * config.hidden, type);
  Plan(&work->logits, (on_gpu ? rows : 1) * config.vocab, type);
  PlanAttention(config.attention, rows, work);
  if (on_gpu) {
    PlanForGpu(config, rows, work);
  } else {
    PlanForCpu(config.attention, rows, work);
  }
}

// The configuration has every branch that any layer has, so its tensors are the largest.
void SequenceMemory::PlanAttention(const NsaLayerConfig& config, int64_t rows, DecodeWork* work) {
  const NsaShape& shape = config.shape;
  const int64_t heads = shape.n_heads, groups = shape.n_kv_groups;
  const DType type = config.dtype;
  Plan(&work->wide, rows * ProjectionWidth(config), type);
  Plan(&work->q, rows * heads * shape.d_k, type);
  Plan(&work->q_rotated, rows * heads * shape.d_k, type);
  Plan(&work->o, rows * heads * shape.d_v, type);
  if (config.has(kSel)) Plan(&work->blocks, rows * groups * shape.n_sel, DType::kI32);
  if (config.has_phi()) {
    const int64_t units = MostNewBlocks(shape) * groups;
    Plan(&work->hidden_k, units * PhiHidden(shape.d_k), type);
    Plan(&work->hidden_v, units * PhiHidden(shape.d_v), type);
  }
}

void SequenceMemory::PlanForCpu(const NsaLayerConfig& config, int64_t rows, DecodeWork* work) {
  const NsaShape& shape = config.shape;
  const int64_t heads = shape.n_heads, groups = shape.n_kv_groups;
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    Plan(&work->o_c[c], rows * heads * shape.d_v, config.dtype);
    Plan(&work->lse[c], rows * heads, DType::kF32);
  }
  Plan(&work->gates, rows * groups * kBranches, DType::kF32);
  if (!config.has(kSel)) return;
  const int64_t most = std::min<int64_t>(shape.seq_len, int64_t{shape.n_sel} * shape.l_sel);
  Plan(&work->near_k, most * groups * shape.d_k, config.dtype);
  Plan(&work->near_v, most * groups * shape.d_v, config.dtype);
}

void SequenceMemory::PlanForGpu(const ModelConfig& config, int64_t rows, DecodeWork* work) {
  Plan(&work->inputs, sizeof(DecodeInputs) / sizeof(int32_t), DType::kI32);
  int64_t scratch = 0;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const NsaLayerConfig attention = config.AttentionOf(layer);
    scratch = std::max(scratch, AttendCachedScratchBytes(attention, rows, attention.shape.seq_len));
  }
  Plan(&work->attention, scratch, DType::kU8);
}

void SequenceMemory::Plan(Tensor* tensor, int64_t size, DType type) {
  planned_.emplace_back(tensor, arena_.Plan(size, type));
}

absl::Status SequenceMemory::Allocate() {
  NSA_RETURN_IF_ERROR(arena_.Allocate(backend_));
  for (const auto& [tensor, slot] : planned_) *tensor = arena_[slot];
  for (std::vector<LayerCache>& layers : caches_) {
    for (LayerCache& cache : layers) cache.Bind(arena_);
  }
  if (backend_ == Backend::kCpu) return absl::OkStatus();
  NameInputs(&work_);
  for (DecodeWork& work : work_of_one_) NameInputs(&work);
  return absl::OkStatus();
}

void SequenceMemory::NameInputs(DecodeWork* work) const {
  auto* const inputs = static_cast<DecodeInputs*>(work->inputs.data);
  work->at = Tensor(inputs->at, 1 + kBranches, DType::kI32);
  work->at_all = Tensor(inputs->at_all, 1 + kBranches, DType::kI32);
  work->tokens = Tensor(inputs->tokens, kDecodeRows, DType::kI32);
  if (options_.documents) work->doc_start = Tensor(inputs->doc_start, kDecodeRows, DType::kI32);
}

Tensor SequenceMemory::keys_read(int32_t slot, int32_t layer) const {
  const int64_t row = slot * std::ssize(caches_[slot]) + layer;
  return {keys_read_.as<int64_t>().data() + row * kBranches, kBranches, DType::kI64};
}

absl::Status SequenceMemory::Append(const Exec& exec, int32_t slot, int64_t rows) {
  for (LayerCache& cache : caches_[slot]) NSA_RETURN_IF_ERROR(cache.Append(exec, rows));
  return absl::OkStatus();
}

absl::Status SequenceMemory::AppendBlock(const Exec& exec, int32_t slot) {
  for (LayerCache& cache : caches_[slot]) NSA_RETURN_IF_ERROR(cache.AppendBlock(exec));
  return absl::OkStatus();
}

std::array<int32_t, kBranches> SequenceMemory::begins(int32_t slot) const {
  std::array<int32_t, kBranches> result = {};
  for (const LayerCache& cache : caches_[slot]) {
    for (int c = 0; c < kBranches; ++c) {
      if (!cache.k[c].wanted()) continue;
      result[c] = std::max(result[c], static_cast<int32_t>(cache.k[c].begin()));
    }
  }
  return result;
}

void SequenceMemory::Clear(int32_t slot) {
  for (LayerCache& cache : caches_[slot]) cache.Clear();
}

}  // namespace nsa::train
