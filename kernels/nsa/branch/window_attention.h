// Window branch: every query attends to the last w tokens, including its own.
//
//   o[b,t,a,:] = Σ_j p_j v[b,j,g,:],   p = softmax_j(scale · q[b,t,a,:]·k[b,j,g,:]),   g = a / h
//   where j runs over max(doc_start[b,t], t − w + 1) … t.
//
// Repeatable: each row of o has one writer, and gradients of k and v are summed in token order.
#pragma once

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nsa/branch/branch_args.h"

namespace nsa {

// Errors: InvalidArgument when the shape is outside its limits or a tensor differs from its shape.
absl::Status WindowAttention(const Exec& exec, const BranchArgs& args);
absl::Status WindowAttentionBackward(const Exec& exec, const BranchBackwardArgs& args);

}  // namespace nsa

// The same on a GPU (window_attention.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status WindowAttention(const Exec& exec, const BranchArgs& args);
absl::Status WindowAttentionBackward(const Exec& exec, const BranchBackwardArgs& args);

}  // namespace nsa::cuda
