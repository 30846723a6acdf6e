// The linear layer y = x Wᵀ and its gradients, as matrix products.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "kernels/nn/matmul.h"

namespace nsa::train {

struct LinearShape {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
};

// y = x Wᵀ, or y = x Wᵀ + add; x [rows, in], w [out, in], y and add [rows, out].
inline absl::Status Linear(const Exec& exec, const LinearShape& s, const ConstTensor& x,
                           const ConstTensor& w, const Tensor& y, const ConstTensor& add = {}) {
  return Matmul(exec, {.m = s.rows,
                       .n = s.out,
                       .k = s.in,
                       .transpose_b = true,
                       .a = x,
                       .b = w,
                       .c = y,
                       .add = add});
}

// dx = dy W, overwritten.
inline absl::Status LinearInputGradient(const Exec& exec, const LinearShape& s,
                                        const ConstTensor& dy, const ConstTensor& w,
                                        const Tensor& dx) {
  return Matmul(exec, {.m = s.rows, .n = s.in, .k = s.out, .a = dy, .b = w, .c = dx});
}

// dw += dyᵀ x, or dw = dyᵀ x with `overwrite`.
inline absl::Status LinearWeightGradient(const Exec& exec, const LinearShape& s,
                                         const ConstTensor& dy, const ConstTensor& x,
                                         const Tensor& dw, bool overwrite) {
  return Matmul(exec, {.m = s.out,
                       .n = s.in,
                       .k = s.rows,
                       .transpose_a = true,
                       .a = dy,
                       .b = x,
                       .c = dw,
                       .accumulate = !overwrite});
}

// Both.
inline absl::Status LinearBackward(const Exec& exec, const LinearShape& s, const ConstTensor& dy,
                                   const ConstTensor& x, const ConstTensor& w, const Tensor& dx,
                                   const Tensor& dw, bool overwrite) {
  NSA_RETURN_IF_ERROR(LinearWeightGradient(exec, s, dy, x, dw, overwrite));
  return LinearInputGradient(exec, s, dy, w, dx);
}

}  // namespace nsa::train
