// The NSA layer between its projections: rotate, compress, choose, attend three times, gate.
//
//   q', k'_x   = rope(q), rope(k_x)                            per head, x in {cmp, sel, win}
//   k̃, ṽ      = φ(k'_cmp), φ(v_cmp)
//   o_cmp      = softmax attention over k̃, ṽ                   and its scores choose the blocks
//   o_sel      = … over the chosen blocks of k'_sel, v_sel
//   o_win      = … over the window of k'_win, v_win
//   o          = Σ gate_x(q) · o_x                             gate from q before RoPE
//
// Branches may be a subset. A branch that is absent has no tensors. With one branch there is no
// gate: o is that branch. When sel is present without cmp there are no compressed keys to score
// with; the blocks are then scored with the average of l rotated keys of the selected branch
// itself.
//
// The caller owns all memory. Forward writes what backward needs into `saved`; `workspace` holds
// nothing between calls (but see LayoutMeanGradient). Both are one block of bytes, laid out by
// LayoutSaved(); sizes are functions of the config, so that an arena can be planned. The same
// config gives the same layout.
//
// Gradients of inputs are overwritten, gradients of parameters are added to.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/nsa/compress.h"
#include "kernels/nsa/gate.h"
#include "kernels/nsa/selected_attention.h"
#include "kernels/tensor.h"

namespace nsa {

// Order of the branches wherever there is one tensor a branch.
enum Branch : uint8_t { kCmp = 0, kSel = 1, kWin = 2 };
inline constexpr int kBranches = 3;

struct AttentionConfig {
  NsaShape shape;
  DType dtype = DType::kF32;  // of activations and parameters; the CPU knows fp32 only
  std::array<bool, kBranches> branches = {true, true, true};
  Phi phi = Phi::kAvg;
  GateKind gate = GateKind::kSoftmax;
  float rope_base = 10000;
  float rope_scale = 1;  // divides positions, of q and of every k

  bool has(Branch branch) const { return branches[branch]; }
  int n_branches() const { return branches[kCmp] + branches[kSel] + branches[kWin]; }
  bool has_gate() const { return n_branches() > 1; }
  // Parameters of φ exist.
  bool has_phi() const { return has(kCmp) && phi == Phi::kMlp; }

  // The shape's limits, at least one branch, rope_base > 1, rope_scale > 0.
  absl::Status Validate() const;
};

struct AttentionParams {
  GateParams gate;  // when has_gate()
  PhiParams phi_k;  // when has_phi(): width dk
  PhiParams phi_v;  // when has_phi(): width dv
};

struct AttentionGrads {
  GateGrads gate;
  PhiGrads phi_k, phi_v;
};

// Views into the bytes of `saved`; tensors of absent branches are empty.
struct AttentionSaved {
  Tensor q;                           // [B, S, H, dk], rotated
  std::array<Tensor, kBranches> k;    // [B, S, G, dk], rotated
  std::array<Tensor, kBranches> o;    // [B, S, H, dv], when has_gate()
  std::array<Tensor, kBranches> lse;  // fp32 [B, S, H]
  Tensor k_cmp, v_cmp;                // [B, S_cmp, G, dk or dv]; k_cmp also for sel without cmp
  Tensor phi_k_hidden, phi_v_hidden;  // [B, S_cmp, G, m], when has_phi()
  Tensor blocks;                      // int32 [B, S, G, n]
  Tensor gates;                       // fp32 [B, S, G, n_b], when has_gate()
};

// Bytes that `saved` and `workspace` must have (uint8 tensors, 16-byte aligned).
int64_t AttentionSavedBytes(const AttentionConfig& config);
int64_t AttentionWorkspaceBytes(const AttentionConfig& config);

// The layout of `saved`, e.g. to look at the chosen blocks. `saved` has AttentionSavedBytes().
AttentionSaved LayoutSaved(const AttentionConfig& config, const Tensor& saved);

// Where AttentionBackward leaves the gate's part of q's gradient when its arguments say `rotated`:
// [B, S, G, dk] within `workspace`, empty without a gate.
Tensor LayoutMeanGradient(const AttentionConfig& config, const Tensor& workspace);

struct AttentionArgs {
  AttentionConfig config;
  AttentionParams params;
  // q and k stand rotated in `saved` already (SplitProjections put them there); k is not read.
  bool rotated = false;
  ConstTensor q;                         // [B, S, H, dk], projected, not rotated
  std::array<ConstTensor, kBranches> k;  // [B, S, G, dk], projected, not rotated
  std::array<ConstTensor, kBranches> v;  // [B, S, G, dv]
  ConstTensor doc_start;                 // optional int32 [B, S]
  Tensor saved;                          // uint8 [AttentionSavedBytes], overwritten
  Tensor workspace;                      // uint8 [AttentionWorkspaceBytes]
  Tensor o;                              // [B, S, H, dv], overwritten
  Tensor gate_stats;                     // optional fp32 [kGateStats], when has_gate()
  Tensor selection_stats;                // optional int64 [kSelectionStats], when sel is present
  Tensor keys_read;                      // optional int64 [3] by branch, 0 when absent
};

struct AttentionBackwardArgs {
  AttentionConfig config;
  AttentionParams params;
  ConstTensor q;                         // as in forward
  std::array<ConstTensor, kBranches> v;  // as in forward
  ConstTensor doc_start;
  ConstTensor o;                     // what forward wrote
  Tensor saved;                      // what forward wrote; not changed
  Tensor workspace;                  // uint8 [AttentionWorkspaceBytes]
  ConstTensor d_o;                   // [B, S, H, dv]
  Tensor dq;                         // [B, S, H, dk], overwritten
  std::array<Tensor, kBranches> dk;  // [B, S, G, dk], overwritten
  std::array<Tensor, kBranches> dv;  // [B, S, G, dv], overwritten
  // dq and dk stay gradients of the rotated q and k, and the gate's part of q's gradient stays in
  // the workspace: JoinProjections takes them from there.
  bool rotated = false;
  AttentionGrads grads;  // added to
};

// Errors: InvalidArgument when the config is outside its limits or a tensor differs from its shape.
absl::Status Attention(const Exec& exec, const AttentionArgs& args);
absl::Status AttentionBackward(const Exec& exec, const AttentionBackwardArgs& args);

// What keys_read must be. `doc_start` (host memory) may be empty.
std::array<int64_t, kBranches> KeysExpected(const AttentionConfig& config,
                                            std::span<const int32_t> doc_start = {});

}  // namespace nsa
