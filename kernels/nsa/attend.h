// The CPU core of the three branches: softmax attention of every query over ranges of keys.
//
//   o[b,t,a,:] = Σ_j p_j v[b,j,g,:],   p = softmax_j(scale · q[b,t,a,:]·k[b,j,g,:]),   g = a / h
//   where j runs over ranges(b, g, t).
//
// Backward, with lse saved and δ_a = Σ_c d_o[a,c] · o[a,c]:
//   p_j = exp(scale · q·k_j − lse),   ds_j = p_j (d_o·v_j − δ) · scale,
//   dq = Σ_j ds_j k_j,   dk_j = Σ_{t,a} ds_j q,   dv_j = Σ_{t,a} p_j d_o.
//
// One (b, g) pair belongs to one thread, which walks t upwards: every sum has one fixed order.
// A query without keys gives o = 0, lse = +inf, dq = 0. Internal to kernels/nsa.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/nsa_shape.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct KeyRange {
  int32_t begin = 0, end = 0;  // keys begin … end − 1
};

// Fills an empty vector with the ranges that a query attends: ascending, disjoint, none empty.
using KeyRangesFn =
    absl::FunctionRef<void(int32_t b, int32_t g, int32_t t, std::vector<KeyRange>* ranges)>;

// Keys read over the (b, g, t) rows of a call, once for the heads of a group.
struct KeyCounts {
  int64_t sum = 0;
  int64_t max = 0;
  int64_t rows = 0;
  int64_t at_max = 0;  // rows with `max` keys
};

struct AttendArgs {
  NsaShape shape;
  int32_t n_keys = 0;  // rows of k and v: S or S_cmp
  float scale = 0;
  const float* q = nullptr;  // [B, S, H, dk]
  const float* k = nullptr;  // [B, n_keys, G, dk]
  const float* v = nullptr;  // [B, n_keys, G, dv]
  float* o = nullptr;        // [B, S, H, dv]
  float* lse = nullptr;      // [B, S, H]
};

struct AttendBackwardArgs {
  NsaShape shape;
  int32_t n_keys = 0;
  float scale = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr, *lse = nullptr;
  const float* d_o = nullptr;  // [B, S, H, dv]
  float* dq = nullptr;         // [B, S, H, dk]
  float* dk = nullptr;         // [B, n_keys, G, dk], overwritten
  float* dv = nullptr;         // [B, n_keys, G, dv], overwritten
  bool add_to_dq = false;
};

KeyCounts Attend(const AttendArgs& args, KeyRangesFn ranges);
void AttendBackward(const AttendBackwardArgs& args, KeyRangesFn ranges);

// scale, or 1/√dk when it is 0.
float ScaleOf(const NsaShape& shape, float scale);

// First token of t's document; 0 without documents.
inline int32_t DocStart(const ConstTensor& doc_start, const NsaShape& shape, int32_t b, int32_t t) {
  if (!doc_start.wanted()) return 0;
  return static_cast<const int32_t*>(doc_start.data)[int64_t{b} * shape.seq_len + t];
}

// The tensors that the three branches have in common, against the shape. `kv_form` is the first
// dimensions of k and v in letters.
struct BranchTensors {
  ConstTensor q, k, v, doc_start, o, lse, keys_read;
};
absl::Status CheckForward(const Exec& exec, const char* kernel, const NsaShape& shape,
                          int64_t n_keys, const BranchTensors& tensors);
struct BranchGradients {
  ConstTensor d_o, dq, dk, dv;
};
absl::Status CheckBackward(const Exec& exec, const char* kernel, const NsaShape& shape,
                           int64_t n_keys, const BranchTensors& tensors,
                           const BranchGradients& gradients);

// Writes the optional keys_read.
inline void StoreKeysRead(const Tensor& keys_read, int64_t keys) {
  if (keys_read.wanted()) *static_cast<int64_t*>(keys_read.data) = keys;
}

// The arguments of a branch's kernel as those of the core.
template <class Args>
AttendArgs CoreOf(const Args& args, int32_t n_keys) {
  return {.shape = args.shape,
          .n_keys = n_keys,
          .scale = ScaleOf(args.shape, args.scale),
          .q = static_cast<const float*>(args.q.data),
          .k = static_cast<const float*>(args.k.data),
          .v = static_cast<const float*>(args.v.data),
          .o = static_cast<float*>(args.o.data),
          .lse = static_cast<float*>(args.lse.data)};
}
template <class Args>
AttendBackwardArgs BackwardCoreOf(const Args& args, int32_t n_keys) {
  return {.shape = args.shape,
          .n_keys = n_keys,
          .scale = ScaleOf(args.shape, args.scale),
          .q = static_cast<const float*>(args.q.data),
          .k = static_cast<const float*>(args.k.data),
          .v = static_cast<const float*>(args.v.data),
          .o = static_cast<const float*>(args.o.data),
          .lse = static_cast<const float*>(args.lse.data),
          .d_o = static_cast<const float*>(args.d_o.data),
          .dq = static_cast<float*>(args.dq.data),
          .dk = static_cast<float*>(args.dk.data),
          .dv = static_cast<float*>(args.dv.data),
          .add_to_dq = args.add_to_dq};
}
template <class Args>
BranchTensors TensorsOf(const Args& args) {
  return {.q = args.q,
          .k = args.k,
          .v = args.v,
          .doc_start = args.doc_start,
          .o = args.o,
          .lse = args.lse};
}
template <class Args>
BranchGradients GradientsOf(const Args& args) {
  return {.d_o = args.d_o, .dq = args.dq, .dk = args.dk, .dv = args.dv};
}

}  // namespace nsa
