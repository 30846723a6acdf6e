// Matrix product: c = op(a)·op(b), c += op(a)·op(b), or c = op(a)·op(b) + add.
//
// All matrices are row-major and contiguous; op(x) is x or its transpose. The linear layer y = x Wᵀ
// of a weight W [out, in] is {.m = rows, .n = out, .k = in, .transpose_b = true}; its gradients are
// dx = dy W and dW += dyᵀ x.
// CPU: OpenBLAS sgemm. Repeatable: the same call with the same number of threads gives the same
// bits.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct MatmulArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  ConstTensor a;            // fp32 [m, k], or [k, m] with transpose_a
  ConstTensor b;            // fp32 [k, n], or [n, k] with transpose_b
  Tensor c;                 // fp32 [m, n]
  bool accumulate = false;  // adds to c instead of overwriting it
  // Optional, [m, n] of c's type: what the product is added to instead of c; not with `accumulate`.
  ConstTensor add;
};

// InvalidArgument when a tensor's size or type differs from its comment; Unimplemented on a backend
// that this build lacks.
absl::Status Matmul(const Exec& exec, const MatmulArgs& args);

}  // namespace nsa
