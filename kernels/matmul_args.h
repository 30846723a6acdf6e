// The arguments of a matrix product, or of a batch of products of one shape, computed by
// nn/matmul.h and planned by cuda/blas.h.
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
  float alpha = 1;    // factor of op(a)·op(b)
  float beta = 1;     // factor of c or `add`, where the product is added to it
  int64_t batch = 1;  // number of products; each tensor holds that many matrices, one after another
};

}  // namespace nsa
