// The NSA layer without its projections: rotate, compress, choose blocks, attend three times, gate.
//
//   q', k'_x   = rope(q), rope(k_x)                            per head, x in {cmp, sel, win};
//                with qk_norm of q and k_x divided by their root mean squares (nn/rope.h)
//   k̃, ṽ      = φ(k'_cmp), φ(v_cmp)
//   o_cmp      = softmax attention over k̃, ṽ                   its scores choose the blocks
//   o_sel      = … over the chosen blocks of k'_sel, v_sel
//   o_win      = … over the window of k'_win, v_win
//   o          = Σ gate_x(q) · o_x                             gate from q as projected
//
// Any non-empty subset of the branches may be present. An absent branch has no tensors. With a
// single branch there is no gate: o is the output of that branch. When sel is present without cmp
// there are no compressed keys to score with; the blocks are then scored with averages of l rotated
// keys of the selected branch itself.
//
// The caller owns all memory. Forward writes what backward needs into `saved`; `workspace` need not
// be kept between calls (except as LayoutMeanGradient describes). Each is one block of bytes, laid
// out by layer_memory.h. The sizes depend only on the config, so that an arena can be planned.
//
// Gradients of inputs are overwritten, gradients of parameters are added to.
#pragma once

#include <array>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "kernels/exec.h"
#include "kernels/nsa/branch/selected_attention.h"
#include "kernels/nsa/compress/compress.h"
#include "kernels/nsa/gate/gate.h"
#include "kernels/nsa/layer/layer_config.h"
#include "kernels/nsa/layer/layer_memory.h"
#include "kernels/tensor.h"

namespace nsa {

struct NsaLayerParams {
  GateParams gate;  // when has_gate()
  PhiParams phi_k;  // when has_phi(): width dk
  PhiParams phi_v;  // when has_phi(): width dv
};

struct NsaLayerGrads {
  GateGrads gate;
  PhiGrads phi_k, phi_v;
};

struct NsaLayerArgs {
  NsaLayerConfig config;
  NsaLayerParams params;
  // True: `saved` already holds the rotated q and k, and with qk_norm their factors (from
  // SplitProjections), and `k` is not read. With qk_norm_weights it must be true.
  bool rotated = false;
  // [B, S, H, dk], projected, not rotated. With `rotated` only the gate reads it, and its tokens
  // may be `q_stride` elements apart, as GateArgs says.
  ConstTensor q;
  int64_t q_stride = 0;
  std::array<ConstTensor, kBranches> k;  // [B, S, G, dk], projected, not rotated
  std::array<ConstTensor, kBranches> v;  // [B, S, G, dv]
  ConstTensor doc_start;                 // optional int32 [B, S]
  Tensor saved;                          // uint8 [NsaLayerSavedBytes], overwritten
  Tensor workspace;                      // uint8 [NsaLayerWorkspaceBytes]
  Tensor o;                              // [B, S, H, dv], overwritten
  Tensor gate_stats;                     // optional fp32 [kGateStats], when has_gate()
  Tensor selection_stats;                // optional int64 [kSelectionStats], when sel is present
  Tensor keys_read;                      // optional int64 [kBranches], 0 when absent
  // keys_read and selection_stats are 0 already, so that the call need not zero them.
  bool statistics_zeroed = false;
};

struct NsaLayerBackwardArgs {
  NsaLayerConfig config;
  NsaLayerParams params;
  std::array<ConstTensor, kBranches> v;  // as in forward
  ConstTensor doc_start;
  ConstTensor o;                     // output of forward
  Tensor saved;                      // output of forward; not changed
  Tensor workspace;                  // uint8 [NsaLayerWorkspaceBytes]
  ConstTensor d_o;                   // [B, S, H, dv]
  Tensor dq;                         // [B, S, H, dk], overwritten
  std::array<Tensor, kBranches> dk;  // [B, S, G, dk], overwritten
  std::array<Tensor, kBranches> dv;  // [B, S, G, dv], overwritten
  // When true, as it must be with qk_norm_weights, dq and dk are the gradients of the rotated q and
  // k, and the gate's part of q's gradient stays in the workspace, where JoinProjections reads it.
  bool rotated = false;
  // Where WritesWide(config), optional: takes the place of dq, dk and dv, which are then empty, and
  // `rotated` is false. [B·S, ProjectionWidth], overwritten: the gradient of the projections side
  // by side, as JoinProjections would write it (projections.h).
  Tensor wide;
  NsaLayerGrads grads;  // added to
};

// Whether the kernels of backward rotate the gradients of q and k back before they write them. On a
// GPU they do, except with qk_norm, where the gradient of a head is known only when it is complete.
inline bool WritesWide(const NsaLayerConfig& config) {
  return config.dtype == DType::kBf16 && !config.qk_norm;
}

// Errors: InvalidArgument when the config is outside its limits or a tensor differs from its shape.
absl::Status NsaLayer(const Exec& exec, const NsaLayerArgs& args);
absl::Status NsaLayerBackward(const Exec& exec, const NsaLayerBackwardArgs& args);

}  // namespace nsa
