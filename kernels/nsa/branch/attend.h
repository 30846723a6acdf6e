// The CPU core of the three branches: softmax attention of each query over ranges of keys.
//
//   o[b,t,a,:] = Σ_j p_j v[b,j,g,:],   p = softmax_j(scale · q[b,t,a,:]·k[b,j,g,:]),   g = a / h
//   where j runs over ranges(b, g, t).
//
// Backward, with lse saved and δ_a = Σ_c d_o[a,c] · o[a,c]:
//   p_j = exp(scale · q·k_j − lse),   ds_j = p_j (d_o·v_j − δ) · scale,
//   dq = Σ_j ds_j k_j,   dk_j = Σ_{t,a} ds_j q,   dv_j = Σ_{t,a} p_j d_o.
//
// Each (b, g) pair is computed by one thread, which walks t upwards, so every sum has a fixed
// order. A query without keys gives o = 0, lse = +inf, dq = 0. For kernels/nsa and the decoder of
// the worker; anybody else calls a branch.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/nsa/nsa_shape.h"
#include "common/nsa/visibility.h"
#include "kernels/exec.h"
#include "kernels/nsa/branch/branch_args.h"
#include "kernels/tensor.h"

namespace nsa {

// Fills an empty vector with the ranges that a query attends to: ascending, disjoint, none empty.
using KeyRangesFn =
    absl::FunctionRef<void(int32_t b, int32_t g, int32_t t, std::vector<KeyRange>* ranges)>;

// Keys read over the (b, g, t) rows of a call. A key is counted once for all heads of a group.
struct KeyCounts {
  int64_t sum = 0;
  int64_t max = 0;  // of one row
  int64_t rows = 0;
  int64_t at_max = 0;  // rows with `max` keys
};

// Forward and backward on the CPU, after the checks; `n_keys` is the number of keys in a sequence.
KeyCounts Attend(const BranchArgs& args, int32_t n_keys, KeyRangesFn ranges);
void AttendBackward(const BranchBackwardArgs& args, int32_t n_keys, KeyRangesFn ranges);

// scale, or 1/√dk when it is 0.
float ScaleOf(const NsaShape& shape, float scale);

// First token of t's document; 0 without documents.
inline int32_t DocStart(const ConstTensor& doc_start, const NsaShape& shape, int32_t b, int32_t t) {
  if (!doc_start.wanted()) return 0;
  return static_cast<const int32_t*>(doc_start.data)[int64_t{b} * shape.seq_len + t];
}

// The checks common to all branches: the shape, and every tensor except `blocks` and
// `selection_stats` against it.
absl::Status CheckBranch(const Exec& exec, const char* kernel, int64_t n_keys,
                         const BranchArgs& args);
absl::Status CheckBranch(const Exec& exec, const char* kernel, int64_t n_keys,
                         const BranchBackwardArgs& args);

// Writes the optional keys_read.
inline void StoreKeysRead(const Tensor& keys_read, int64_t keys) {
  if (keys_read.wanted()) *static_cast<int64_t*>(keys_read.data) = keys;
}

// Appends a range unless it is empty; merges it with the last one when that ends where it begins.
inline void PushRange(KeyRange range, std::vector<KeyRange>* ranges) {
  if (range.end <= range.begin) return;
  if (!ranges->empty() && ranges->back().end == range.begin) {
    ranges->back().end = range.end;
  } else {
    ranges->push_back(range);
  }
}

// The ranges of a branch in which each query reads every key that the branch's rule makes visible.
template <Branch kBranch, class Args>
auto RangesOf(const Args& args) {
  return [&args](int32_t b, int32_t, int32_t t, std::vector<KeyRange>* ranges) {
    const int32_t first = DocStart(args.doc_start, args.shape, b, t);
    PushRange(BranchRule<kBranch>::Keys(args.shape, t, first), ranges);
  };
}

}  // namespace nsa
