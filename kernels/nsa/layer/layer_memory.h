// Layout of the memory that an NSA layer uses and its caller owns: what forward saves for backward
// (`saved`), the workspace of backward, and the scratch memory of the kernels on a GPU. All sizes
// depend only on the config.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/nsa/attention_scratch.h"
#include "common/nsa/branch.h"
#include "kernels/nsa/layer/layer_config.h"
#include "kernels/tensor.h"

namespace nsa {

// Views into the bytes of `saved`; tensors of absent branches are empty.
struct NsaLayerSaved {
  Tensor q;                         // [B, S, H, dk], rotated
  std::array<Tensor, kBranches> k;  // [B, S, G, dk], rotated
  // With qk_norm, whose factors these are (RopeArgs::rstd):
  Tensor q_rstd;                         // fp32 [B, S, H]
  std::array<Tensor, kBranches> k_rstd;  // fp32 [B, S, G]
  // With qk_norm_weights, the normalized heads before the weights (RopeArgs::unit):
  Tensor q_unit;                         // [B, S, H, dk]
  std::array<Tensor, kBranches> k_unit;  // [B, S, G, dk]
  std::array<Tensor, kBranches> o;       // [B, S, H, dv], when has_gate()
  std::array<Tensor, kBranches> lse;     // fp32 [B, S, H]
  Tensor k_cmp, v_cmp;                   // [B, S_cmp, G, dk or dv]; k_cmp also for sel without cmp
  Tensor phi_k_hidden, phi_v_hidden;     // [B, S_cmp, G, m], when has_phi()
  Tensor blocks;                         // int32 [B, S, G, n]
  Tensor gates, q_mean;                  // fp32 [B, S, G, n_b or dk], when has_gate()
};

// The tensors of the branches, for reading.
inline std::array<ConstTensor, kBranches> ReadOnly(const std::array<Tensor, kBranches>& tensors) {
  std::array<ConstTensor, kBranches> out;
  std::copy(tensors.begin(), tensors.end(), out.begin());
  return out;
}

// Bytes that `saved` and `workspace` must have (uint8 tensors, 16-byte aligned).
int64_t NsaLayerSavedBytes(const NsaLayerConfig& config);
int64_t NsaLayerWorkspaceBytes(const NsaLayerConfig& config);

// The layout of `saved`, e.g. to read the chosen blocks. `saved` has NsaLayerSavedBytes() bytes.
NsaLayerSaved LayoutSaved(const NsaLayerConfig& config, const Tensor& saved);

// The layout of `workspace`. Used in backward only; its contents do not persist between calls.
struct NsaLayerWorkspace {
  std::array<Tensor, kBranches> d_o;  // [B, S, H, dv], when has_gate(), fp32 (on the CPU) only
  Tensor dq_mean;                     // [B, S, G, dk], when has_gate()
  Tensor dk_cmp, dv_cmp;              // [B, S_cmp, G, dk or dv]
  Tensor d_hidden_k, d_hidden_v;      // [B, S_cmp, G, m], when has_phi()
};
NsaLayerWorkspace LayoutWorkspace(const NsaLayerConfig& config, const Tensor& workspace);

// Where NsaLayerBackward leaves the gate's part of q's gradient when `rotated` is set in its
// arguments: [B, S, G, dk] within `workspace`, empty without a gate.
Tensor LayoutMeanGradient(const NsaLayerConfig& config, const Tensor& workspace);

// Plans Exec::workspace on a GPU. Kernels that run concurrently have separate parts, and so has the
// gate's backward, which runs while the branches' parts hold the statistics of their rows. All
// other kernels of the layer run alone and use the memory from offset 0 on.
LayerScratch PlanScratch(const NsaLayerConfig& config);

}  // namespace nsa
