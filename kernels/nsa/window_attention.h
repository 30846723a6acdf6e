// Window branch: every query attends the last w tokens, its own included.
//
//   o[b,t,a,:] = Σ_j p_j v[b,j,g,:],   p = softmax_j(scale · q[b,t,a,:]·k[b,j,g,:]),   g = a / h
//   where j runs over max(doc_start[b,t], t − w + 1) … t.
//
// Repeatable: a row of o has one writer, gradients of k and v are summed in token order.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct WindowAttentionArgs {
  NsaShape shape;
  float scale = 0;        // 0 means 1/√dk
  ConstTensor q;          // [B, S, H, dk], rotated
  ConstTensor k;          // [B, S, G, dk], rotated
  ConstTensor v;          // [B, S, G, dv]
  ConstTensor doc_start;  // optional int32 [B, S]: first token of t's document; without it 0
  Tensor o;               // [B, S, H, dv], overwritten
  Tensor lse;             // fp32 [B, S, H], overwritten
  Tensor keys_read;  // optional int64 [1]: keys read, once for the heads of a group; overwritten
};

struct WindowAttentionBackwardArgs {
  NsaShape shape;
  float scale = 0;
  ConstTensor q, k, v, doc_start, o, lse;  // as in forward
  ConstTensor d_o;                         // [B, S, H, dv]
  Tensor dq;                               // [B, S, H, dk], overwritten, or added to when add_to_dq
  Tensor dk;                               // [B, S, G, dk], overwritten
  Tensor dv;                               // [B, S, G, dv], overwritten
  bool add_to_dq = false;
};

// Errors: InvalidArgument when the shape is outside its limits or a tensor differs from its shape.
absl::Status WindowAttention(const Exec& exec, const WindowAttentionArgs& args);
absl::Status WindowAttentionBackward(const Exec& exec, const WindowAttentionBackwardArgs& args);

// What keys_read must be: B·G·Σ_t window length. `doc_start` (host memory) may be empty.
int64_t WindowKeysExpected(const NsaShape& shape, std::span<const int32_t> doc_start = {});

}  // namespace nsa
