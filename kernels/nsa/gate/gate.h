// Gate: the weight of each branch in a token's output; one gate per branch for a group's heads.
//
//   x[b,t,g,:] = mean over the h heads of group g of q[b,t,:,:]          (q BEFORE RoPE)
//   z          = fc2.w · silu(fc1.w · x + fc1.b) + fc2.b                 (one logit per branch)
//   gate       = softmax(z)  or  sigmoid(z)
//   o[b,t,a,:] = Σ_branches gate[b,t,g,branch] · o_branch[b,t,a,:]       g = a / h     (eq. 5)
//
// Branches are in the order of common/nsa/branch.h. A branch whose tensor has no memory is absent;
// n_b branches are present. Gates and fc2 have one row per present branch, in that order. n_b ≥ 2,
// since a single branch needs no gate. Gradients of parameters are added to, all others
// overwritten. Repeatable: parameter gradients are summed over fixed chunks of rows in order.
//
// Backward hands each branch the gradient of its output, gate · d_o. On the CPU this is a tensor.
// On a GPU the branches read d_o itself, because the gate can be moved into a branch's weights p:
//
//   p' = gate · p = exp(s − (lse − ln gate)),               δ  = Σ_c d_o · o_branch
//   ds = p · (gate · d_o·v − gate · δ) = p' · (d_o·v − δ),  dv = Σ p · gate · d_o = Σ p' · d_o
//
// There backward writes two numbers per row and branch, lse − ln gate and δ, instead of a tensor. A
// gate of 0 gives lse − ln gate = +inf and p' = 0, as for a row that sees no key (lse = +inf).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

enum class GateKind : uint8_t { kSoftmax, kSigmoid };

// Hidden units of the gate's MLP.
constexpr int64_t GateHidden(int64_t d_k) { return d_k / 2; }

struct GateParams {
  ConstTensor fc1_w;  // [dk/2, dk]     initialise from U(±1/√dk)
  ConstTensor fc1_b;  // [dk/2]         initialise from U(±1/√dk)
  ConstTensor fc2_w;  // [n_b, dk/2]    initialise from U(±0.1·√(6/(dk/2 + n_b)))
  ConstTensor fc2_b;  // [n_b]          initialise with 0
};

// Gradients of GateParams, fp32, added to.
struct GateGrads {
  Tensor fc1_w, fc1_b, fc2_w, fc2_b;
};

// gate_stats: fp32 [kGateStats], over the (token, group) rows of one call. Most describe the shares
// gate_c / Σ gate of each row. With softmax the shares are the gates themselves. With sigmoid they
// hide how large the gates are: three gates of 6e-6 share equally although the layer is switched
// off. gate_mean and the sum in collapse_ratio show that.
inline constexpr int kGateStats = 5 + 2 * kBranches;

// A row has collapsed onto one branch when its entropy is below kCollapsedEntropy and a share above
// kCollapsedShare, or onto none when the sum of its gates is below kCollapsedSum.
inline constexpr float kCollapsedEntropy = 0.1f, kCollapsedShare = 0.95f, kCollapsedSum = 0.05f;

struct GateStats {
  float entropy_mean = 0;                          // nats; ln n_b when the branches share equally
  float entropy_min = 0;                           // smallest entropy of a row
  float max_gate_mean = 0;                         // mean over the rows of the row's largest share
  float max_gate_max = 0;                          // largest share of all rows
  float collapse_ratio = 0;                        // fraction of rows that have collapsed
  std::array<float, kBranches> branch_share = {};  // mean share of each branch; 0 when absent
  std::array<float, kBranches> gate_mean = {};     // mean gate of each branch; 0 when absent
};

// Converts the values that Gate() wrote, once they are in host memory.
GateStats ReadGateStats(std::span<const float> values);

struct GateArgs {
  NsaShape shape;
  GateKind kind = GateKind::kSoftmax;
  ConstTensor q;  // [B, S, H, dk], not rotated
  // Elements from a token of q to the next, a multiple of 8; 0: H·dk. With another number q has
  // B·S times as many elements; the first H·dk of each token are read.
  int64_t q_stride = 0;
  GateParams params;
  std::array<ConstTensor, kBranches> o_branch;  // each [B, S, H, dv] or absent
  Tensor gates;                                 // fp32 [B, S, G, n_b], overwritten
  Tensor o;                                     // [B, S, H, dv], overwritten
  Tensor gate_stats;                            // optional fp32 [kGateStats], overwritten
  Tensor q_mean;                                // optional fp32 [B, S, G, dk], overwritten: x
};

struct GateBackwardArgs {
  NsaShape shape;
  GateKind kind = GateKind::kSoftmax;
  ConstTensor q_mean;  // output of forward
  GateParams params;
  std::array<ConstTensor, kBranches> o_branch;
  ConstTensor gates;  // output of forward
  ConstTensor d_o;    // [B, S, H, dv]
  // For each present branch. CPU only:
  std::array<Tensor, kBranches> d_o_branch;  // [B, S, H, dv], overwritten
  // CUDA only:
  std::array<ConstTensor, kBranches> lse;  // fp32 [B, S, H], output of the branch's forward
  std::array<Tensor, kBranches> stats;  // fp32 [B, S, H, 2], overwritten: BranchBackwardArgs::stats
  Tensor dq_mean;   // [B, S, G, dk], gradient of x, overwritten; each head gets 1/h of it
  GateGrads grads;  // added to
};

// dq[b,t,a,:] += dq_mean[b,t,g,:] / h for the heads a of group g. Adds the gate's part to q's
// gradient after the branches' part has been rotated back.
struct AddMeanGradientArgs {
  NsaShape shape;
  ConstTensor dq_mean;  // [B, S, G, dk]
  Tensor dq;            // [B, S, H, dk], added to
};

// Errors: InvalidArgument when the shape is outside its limits or a tensor differs from its shape.
absl::Status Gate(const Exec& exec, const GateArgs& args);
absl::Status GateBackward(const Exec& exec, const GateBackwardArgs& args);
absl::Status AddMeanGradient(const Exec& exec, const AddMeanGradientArgs& args);

}  // namespace nsa

// The same on a GPU (gate.cu, gate_backward.cu); the functions above have checked the arguments.
// Gate and GateBackward use PlanGateScratch() bytes of Exec::workspace.
namespace nsa::cuda {

absl::Status Gate(const Exec& exec, const GateArgs& args);
absl::Status GateBackward(const Exec& exec, const GateBackwardArgs& args);
absl::Status AddMeanGradient(const Exec& exec, const AddMeanGradientArgs& args);

}  // namespace nsa::cuda
