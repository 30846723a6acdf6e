// Selected branch: every query attends to the tokens of the n blocks that its group selected.
//
//   o[b,t,a,:] = Σ_j p_j v[b,j,g,:],   p = softmax_j(scale · q[b,t,a,:]·k[b,j,g,:]),   g = a / h
//   where j runs over the tokens doc_start[b,t] ≤ j ≤ t of blocks[b,t,g,0..n).
//
// Block ids are ascending and distinct; −1 is an empty slot. A row without keys gets o = 0,
// lse = +inf and no gradient (SelectBlocks leaves no row without keys: the block of t is forced).
// Repeatable: each row of o has one writer, and gradients of k and v are summed in token order.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nsa/branch/branch_args.h"

namespace nsa {

// selection_stats: int64 [kSelectionStats], over the (token, group) rows of one call.
inline constexpr int kSelectionStats = 4;
struct SelectionStats {
  int64_t keys_sum = 0;  // keys read by all rows
  int64_t keys_max = 0;  // most keys of a row
  int64_t rows = 0;      // B·S·G
  int64_t at_max = 0;    // rows with keys_max keys
};

// Combines statistics of the same layer from two micro-batches or ranks.
SelectionStats Combine(const SelectionStats& a, const SelectionStats& b);

// Errors: InvalidArgument when the shape is outside its limits, a tensor differs from its shape, or
// (CPU only) a block id is outside −1 … ⌊t/l'⌋ or not ascending.
absl::Status SelectedAttention(const Exec& exec, const BranchArgs& args);
absl::Status SelectedAttentionBackward(const Exec& exec, const BranchBackwardArgs& args);

}  // namespace nsa

// The same on a GPU (selected_attention.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status SelectedAttention(const Exec& exec, const BranchArgs& args);
absl::Status SelectedAttentionBackward(const Exec& exec, const BranchBackwardArgs& args);

}  // namespace nsa::cuda
