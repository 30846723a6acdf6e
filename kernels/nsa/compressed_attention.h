// Compressed branch: every query attends the compressed blocks that lie wholly in its past.
//
//   o[b,t,a,:] = Σ_i p_i v[b,i,g,:],   p = softmax_i(scale · q[b,t,a,:]·k[b,i,g,:]),   g = a / h
//   where i runs over the blocks with doc_start[b,t] ≤ i·d and i·d + l − 1 ≤ t.
//
// A query that sees no block (t < l − 1) gets o = 0, lse = +inf and no gradient.
// Repeatable: a row of o has one writer, gradients of k and v are summed in token order.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct CompressedAttentionArgs {
  NsaShape shape;
  float scale = 0;        // 0 means 1/√dk
  ConstTensor q;          // [B, S, H, dk], rotated
  ConstTensor k;          // [B, S_cmp, G, dk], what Compress wrote
  ConstTensor v;          // [B, S_cmp, G, dv]
  ConstTensor doc_start;  // optional int32 [B, S]: first token of t's document; without it 0
  Tensor o;               // [B, S, H, dv], overwritten
  Tensor lse;             // fp32 [B, S, H], natural log of the softmax's denominator, overwritten
  Tensor keys_read;  // optional int64 [1]: keys read, once for the heads of a group; overwritten
};

struct CompressedAttentionBackwardArgs {
  NsaShape shape;
  float scale = 0;
  ConstTensor q, k, v, doc_start, o, lse;  // as in forward
  ConstTensor d_o;                         // [B, S, H, dv]
  Tensor dq;                               // [B, S, H, dk], overwritten, or added to when add_to_dq
  Tensor dk;                               // [B, S_cmp, G, dk], overwritten
  Tensor dv;                               // [B, S_cmp, G, dv], overwritten
  bool add_to_dq = false;
};

// Errors: InvalidArgument when the shape is outside its limits or a tensor differs from its shape.
absl::Status CompressedAttention(const Exec& exec, const CompressedAttentionArgs& args);
absl::Status CompressedAttentionBackward(const Exec& exec,
                                         const CompressedAttentionBackwardArgs& args);

// What keys_read must be: B·G·Σ_t visible blocks. `doc_start` (host memory) may be empty.
int64_t CompressedKeysExpected(const NsaShape& shape, std::span<const int32_t> doc_start = {});

}  // namespace nsa
