// Compressed branch: every query attends to the compressed blocks that lie entirely in its past.
//
//   o[b,t,a,:] = Σ_i p_i v[b,i,g,:],   p = softmax_i(scale · q[b,t,a,:]·k[b,i,g,:]),   g = a / h
//   where i runs over the blocks with doc_start[b,t] ≤ i·d and i·d + l − 1 ≤ t.
//
// A query that sees no block (t < l − 1) gets o = 0, lse = +inf and no gradient.
// Repeatable: each row of o has one writer, and gradients of k and v are summed in token order.
#pragma once

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nsa/branch/branch_args.h"

namespace nsa {

// Errors: InvalidArgument when the shape is outside its limits or a tensor differs from its shape.
absl::Status CompressedAttention(const Exec& exec, const BranchArgs& args);
absl::Status CompressedAttentionBackward(const Exec& exec, const BranchBackwardArgs& args);

}  // namespace nsa

// The same on a GPU (compressed_attention.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status CompressedAttention(const Exec& exec, const BranchArgs& args);
absl::Status CompressedAttentionBackward(const Exec& exec, const BranchBackwardArgs& args);

}  // namespace nsa::cuda
