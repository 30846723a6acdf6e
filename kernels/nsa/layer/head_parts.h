// Divides the columns of a matrix among N ranks by heads, and puts them together again, for context
// parallelism (DeepSpeed-Ulysses, arXiv 2309.14509). The columns of the matrix are segments, one
// for each projection, and each segment has its heads side by side: [ q | k_x | v_x | … ]. Part p
// has the p-th of N equal ranges of every segment, so that it is again such a matrix, of H/N query
// heads and G/N groups:
//
//   parts[p, r, b/N + j] = whole[r, b + p · w/N + j]     segment [b, b + w), j < w/N
//
// Values are copied as they are. Both are limited by memory bandwidth: each value is read and
// written once.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// Segments that a matrix may have: q, and a key and a value for each branch.
inline constexpr int kMostHeadSegments = 7;

struct SplitHeadsArgs {
  int32_t parts = 1;  // N
  int64_t rows = 0;   // R
  // Columns of each segment, at most kMostHeadSegments of them; W is their sum. N divides each; on
  // a GPU 8·N does.
  std::span<const int64_t> widths;
  ConstTensor whole;  // [R, W], fp32 on the CPU, bf16 on a GPU
  Tensor split;       // [N, R, W/N], of the same type, overwritten
};

struct JoinHeadsArgs {
  int32_t parts = 1;
  int64_t rows = 0;
  std::span<const int64_t> widths;
  ConstTensor split;  // [N, R, W/N]
  Tensor whole;       // [R, W], overwritten
};

// InvalidArgument when sizes or types do not fit together. Source and target must not overlap.
absl::Status SplitHeads(const Exec& exec, const SplitHeadsArgs& args);
absl::Status JoinHeads(const Exec& exec, const JoinHeadsArgs& args);

}  // namespace nsa

// The same on a GPU (head_parts.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status SplitHeads(const Exec& exec, const SplitHeadsArgs& args);
absl::Status JoinHeads(const Exec& exec, const JoinHeadsArgs& args);

}  // namespace nsa::cuda
