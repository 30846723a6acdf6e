// Copies, adds, converts and clears tensors on the device of an Exec.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// to ← from. InvalidArgument when sizes or types differ. They must not overlap.
absl::Status Copy(const Exec& exec, const ConstTensor& from, const Tensor& to);

// to ← 0.
absl::Status Zero(const Exec& exec, const Tensor& to);

// A run of elements.
struct ElementRange {
  int64_t begin = 0;
  int64_t size = 0;
};

// These elements of an fp32 tensor ← 0. On a GPU begins and sizes are multiples of 4, and a range
// has less than 2³² elements. InvalidArgument where a range is not within the tensor.
absl::Status ZeroRanges(const Exec& exec, const Tensor& to, std::span<const ElementRange> ranges);

// to ← to + from, both fp32. InvalidArgument when sizes or types are others. They must not overlap.
absl::Status AddTo(const Exec& exec, const ConstTensor& from, const Tensor& to);

// to ← from, one of them fp32 and the other bf16, which is rounded to nearest even; NaN stays NaN.
// InvalidArgument when sizes or types are others. They must not overlap.
absl::Status Convert(const Exec& exec, const ConstTensor& from, const Tensor& to);

}  // namespace nsa

// The same on a GPU (copy.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status Copy(const Exec& exec, const ConstTensor& from, const Tensor& to);
absl::Status Zero(const Exec& exec, const Tensor& to);
absl::Status ZeroRanges(const Exec& exec, const Tensor& to, std::span<const ElementRange> ranges);
absl::Status AddTo(const Exec& exec, const ConstTensor& from, const Tensor& to);
absl::Status Convert(const Exec& exec, const ConstTensor& from, const Tensor& to);

}  // namespace nsa::cuda
