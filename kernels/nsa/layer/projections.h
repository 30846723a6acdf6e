// Connects the projections to the attention layer. One product computes q and the keys and values
// of every branch, side by side in a wide matrix of R = B·S rows:
//
//   wide[r, :] = [ q | k_x | v_x | k_y | v_y | … ]      branches in kProjectionOrder
//
// Splitting copies the columns into separate tensors and rotates q and the keys (nn/rope.h), with
// qk_norm normalized and with qk_norm_weights multiplied by weights. Joining is its gradient: it
// rotates the gradients of q and the keys back, adds the gate's part to the gradient of q and puts
// them side by side again. On the CPU this runs SplitColumns, Rope, AddMeanGradient and JoinColumns
// one after the other; on a GPU each direction reads and writes every number once. There only
// qk_norm needs the joining: without it NsaLayerBackward writes the gradient of `wide` itself
// (WritesWide()).
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "kernels/tensor.h"

namespace nsa {

// Columns of `wide`.
int64_t ProjectionWidth(const NsaLayerConfig& config);

// The weights of normalized heads, with qk_norm_weights: [dk] each.
struct HeadNormWeights {
  ConstTensor q;
  ConstTensor k;  // of the keys of every branch
};

struct SplitProjectionsArgs {
  NsaLayerConfig config;
  ConstTensor wide;                 // [R, ProjectionWidth]
  Tensor q;                         // optional [B, S, H, dk], as projected, overwritten
  Tensor q_rotated;                 // [B, S, H, dk], overwritten
  std::array<Tensor, kBranches> k;  // [B, S, G, dk], rotated, overwritten
  std::array<Tensor, kBranches> v;  // [B, S, G, dv], overwritten
  // With qk_norm, optional: its factors, for JoinProjections.
  Tensor q_rstd;                         // fp32 [B, S, H], overwritten
  std::array<Tensor, kBranches> k_rstd;  // fp32 [B, S, G], overwritten
  HeadNormWeights norm_weights;          // with qk_norm_weights
  // With qk_norm_weights, optional: the normalized heads before the weights, for JoinProjections.
  Tensor q_unit;                         // [B, S, H, dk], overwritten
  std::array<Tensor, kBranches> k_unit;  // [B, S, G, dk], overwritten
  int32_t first = 0;                     // position of the first token of each sequence
  // Optional, on a GPU only: int32 [1 + kBranches], read when the kernel runs, so that a captured
  // launch serves every position. at[0] takes the place of `first`. k[c] and v[c] then name row
  // at[1 + c] of a sequence, the first that a cache holds, and row at[0] on is written, where the
  // cache has room for it. No kernel may write it.
  ConstTensor at;
};

struct JoinProjectionsArgs {
  NsaLayerConfig config;
  Tensor dq;                              // [B, S, H, dk], gradient of q_rotated; may be changed
  ConstTensor dq_mean;                    // [B, S, G, dk], when has_gate()
  std::array<Tensor, kBranches> dk;       // [B, S, G, dk], gradients of k; may be changed
  std::array<ConstTensor, kBranches> dv;  // [B, S, G, dv]
  Tensor wide;                            // [R, ProjectionWidth], overwritten
  // With qk_norm: what SplitProjections wrote.
  ConstTensor q_rotated, q_rstd;
  std::array<ConstTensor, kBranches> k_rotated, k_rstd;
  // With qk_norm_weights in place of q_rotated and k_rotated, which are then not read:
  HeadNormWeights norm_weights;
  ConstTensor q_unit;
  std::array<ConstTensor, kBranches> k_unit;
  Tensor dq_weight, dk_weight;  // fp32 [dk], added to
};

// Errors: InvalidArgument when the config is outside its limits, a tensor differs from its shape,
// or JoinProjections is called on a GPU without qk_norm.
absl::Status SplitProjections(const Exec& exec, const SplitProjectionsArgs& args);
absl::Status JoinProjections(const Exec& exec, const JoinProjectionsArgs& args);

}  // namespace nsa

// The same on a GPU (projections.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status SplitProjections(const Exec& exec, const SplitProjectionsArgs& args);
absl::Status JoinProjections(const Exec& exec, const JoinProjectionsArgs& args);
// Bytes of Exec::workspace that JoinProjections needs with qk_norm_weights.
int64_t HeadWeightGradientWorkspaceBytes(int64_t d_k);

}  // namespace nsa::cuda
