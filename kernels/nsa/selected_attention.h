// Selected branch: every query attends the tokens of the n blocks that its group selected.
//
//   o[b,t,a,:] = Σ_j p_j v[b,j,g,:],   p = softmax_j(scale · q[b,t,a,:]·k[b,j,g,:]),   g = a / h
//   where j runs over the tokens doc_start[b,t] ≤ j ≤ t of blocks[b,t,g,0..n).
//
// Block ids are ascending and distinct, −1 is an empty slot. A row without a key gets o = 0,
// lse = +inf and no gradient (SelectBlocks never leaves one: the block of t is forced).
// Repeatable: a row of o has one writer, gradients of k and v are summed in token order.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// selection_stats: int64 [kSelectionStats], over the (token, group) rows of one call.
inline constexpr int kSelectionStats = 4;
struct SelectionStats {
  int64_t keys_sum = 0;  // keys read by all rows
  int64_t keys_max = 0;  // most keys of a row
  int64_t rows = 0;      // B·S·G
  int64_t at_max = 0;    // rows with keys_max keys
};

// Of the same layer, from two micro-batches or ranks.
SelectionStats Combine(const SelectionStats& a, const SelectionStats& b);

struct SelectedAttentionArgs {
  NsaShape shape;
  float scale = 0;        // 0 means 1/√dk
  ConstTensor q;          // [B, S, H, dk], rotated
  ConstTensor k;          // [B, S, G, dk], rotated
  ConstTensor v;          // [B, S, G, dv]
  ConstTensor blocks;     // int32 [B, S, G, n]
  ConstTensor doc_start;  // optional int32 [B, S]: first token of t's document; without it 0
  Tensor o;               // [B, S, H, dv], overwritten
  Tensor lse;             // fp32 [B, S, H], overwritten
  Tensor keys_read;  // optional int64 [1]: keys read, once for the heads of a group; overwritten
  Tensor
      selection_stats;  // optional int64 [kSelectionStats], in SelectionStats' order, overwritten
};

struct SelectedAttentionBackwardArgs {
  NsaShape shape;
  float scale = 0;
  ConstTensor q, k, v, blocks, doc_start, o, lse;  // as in forward
  ConstTensor d_o;                                 // [B, S, H, dv]
  Tensor dq;  // [B, S, H, dk], overwritten, or added to when add_to_dq
  Tensor dk;  // [B, S, G, dk], overwritten
  Tensor dv;  // [B, S, G, dv], overwritten
  bool add_to_dq = false;
};

// Errors: InvalidArgument when the shape is outside its limits, a tensor differs from its shape, or
// (CPU only) a block id is outside −1 … ⌊t/l'⌋ or not ascending.
absl::Status SelectedAttention(const Exec& exec, const SelectedAttentionArgs& args);
absl::Status SelectedAttentionBackward(const Exec& exec, const SelectedAttentionBackwardArgs& args);

// What keys_read must be when SelectBlocks chose: forced and best blocks fill n slots or all there
// is, so the count does not depend on the scores. `doc_start` (host memory) may be empty.
int64_t SelectedKeysExpected(const NsaShape& shape, std::span<const int32_t> doc_start = {});

}  // namespace nsa
