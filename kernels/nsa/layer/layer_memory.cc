#include "kernels/nsa/layer/layer_memory.h"

#include "common/base/arena_plan.h"
#include "kernels/nsa/compress/compress.h"

namespace nsa {
namespace {

constexpr int64_t kAlignment = 64;  // of every tensor within saved and workspace

// Places tensors one after the other in a block of bytes. Without memory it only counts the bytes.
class TensorCutter {
 public:
  explicit TensorCutter(void* base) : base_(static_cast<uint8_t*>(base)) {}

  Tensor Take(int64_t elements, DType type) {
    const int64_t at = plan_.Take(elements * SizeOf(type));
    return {base_ == nullptr || elements == 0 ? nullptr : base_ + at, elements, type};
  }
  int64_t used() const { return plan_.used(); }

 private:
  uint8_t* base_;
  ArenaPlan plan_{kAlignment};
};

int64_t TokenGroups(const NsaShape& shape) {
  return int64_t{1} * shape.batch * shape.seq_len * shape.n_kv_groups;
}

NsaLayerSaved CutSaved(const NsaLayerConfig& config, TensorCutter* memory) {
  const NsaShape& shape = config.shape;
  NsaLayerSaved saved;
  saved.q = memory->Take(shape.q_size(), config.dtype);
  if (config.qk_norm) saved.q_rstd = memory->Take(shape.q_size() / shape.d_k, DType::kF32);
  if (config.qk_norm_weights) saved.q_unit = memory->Take(shape.q_size(), config.dtype);
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    if (config.qk_norm_weights) saved.k_unit[c] = memory->Take(shape.k_size(), config.dtype);
    saved.k[c] = memory->Take(shape.k_size(), config.dtype);
    if (config.qk_norm) saved.k_rstd[c] = memory->Take(TokenGroups(shape), DType::kF32);
    if (config.has_gate()) saved.o[c] = memory->Take(shape.o_size(), config.dtype);
    saved.lse[c] =
        memory->Take(int64_t{1} * shape.batch * shape.seq_len * shape.n_heads, DType::kF32);
  }
  if (config.has(kCmp) || config.has(kSel)) {
    saved.k_cmp = memory->Take(shape.cmp_k_size(), config.dtype);
  }
  if (config.has(kCmp)) saved.v_cmp = memory->Take(shape.cmp_v_size(), config.dtype);
  if (config.has_phi()) {
    const int64_t rows = int64_t{1} * shape.batch * shape.cmp_blocks() * shape.n_kv_groups;
    saved.phi_k_hidden = memory->Take(rows * PhiHidden(shape.d_k), config.dtype);
    saved.phi_v_hidden = memory->Take(rows * PhiHidden(shape.d_v), config.dtype);
  }
  if (config.has(kSel)) saved.blocks = memory->Take(shape.blocks_size(), DType::kI32);
  if (config.has_gate()) {
    saved.gates = memory->Take(TokenGroups(shape) * config.n_branches(), DType::kF32);
    saved.q_mean = memory->Take(TokenGroups(shape) * shape.d_k, DType::kF32);
  }
  return saved;
}

NsaLayerWorkspace CutWorkspace(const NsaLayerConfig& config, TensorCutter* memory) {
  const NsaShape& shape = config.shape;
  NsaLayerWorkspace workspace;
  if (config.has_gate()) {
    for (int c = 0; c < kBranches; ++c) {
      if (!config.branches[c] || config.dtype != DType::kF32) continue;
      workspace.d_o[c] = memory->Take(shape.o_size(), config.dtype);
    }
    workspace.dq_mean = memory->Take(TokenGroups(shape) * shape.d_k, config.dtype);
  }
  if (config.has(kCmp)) {
    workspace.dk_cmp = memory->Take(shape.cmp_k_size(), config.dtype);
    workspace.dv_cmp = memory->Take(shape.cmp_v_size(), config.dtype);
  }
  if (config.has_phi()) {
    const int64_t rows = int64_t{1} * shape.batch * shape.cmp_blocks() * shape.n_kv_groups;
    workspace.d_hidden_k = memory->Take(rows * PhiHidden(shape.d_k), config.dtype);
    workspace.d_hidden_v = memory->Take(rows * PhiHidden(shape.d_v), config.dtype);
  }
  return workspace;
}

}  // namespace

int64_t NsaLayerSavedBytes(const NsaLayerConfig& config) {
  TensorCutter memory(nullptr);
  CutSaved(config, &memory);
  return memory.used();
}

int64_t NsaLayerWorkspaceBytes(const NsaLayerConfig& config) {
  TensorCutter memory(nullptr);
  CutWorkspace(config, &memory);
  return memory.used();
}

NsaLayerSaved LayoutSaved(const NsaLayerConfig& config, const Tensor& saved) {
  TensorCutter memory(saved.data);
  return CutSaved(config, &memory);
}

NsaLayerWorkspace LayoutWorkspace(const NsaLayerConfig& config, const Tensor& workspace) {
  TensorCutter memory(workspace.data);
  return CutWorkspace(config, &memory);
}

Tensor LayoutMeanGradient(const NsaLayerConfig& config, const Tensor& workspace) {
  return LayoutWorkspace(config, workspace).dq_mean;
}

LayerScratch PlanScratch(const NsaLayerConfig& config) {
  return PlanLayerScratch(config.shape, config.branches, config.has_phi());
}

}  // namespace nsa
