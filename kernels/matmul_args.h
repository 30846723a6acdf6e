// The arguments of a matrix product, computed by nn/matmul.h and planned by cuda/blas.h.
#pragma once

#include <cstdint>

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
  // Optional, [m, n] of c's type: c = op(a)·op(b) + add. Not together with `accumulate`.
  ConstTensor add;
};

}  // namespace nsa
