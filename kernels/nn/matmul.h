// Matrix product: c = op(a)·op(b), c += op(a)·op(b), or c = op(a)·op(b) + add, with a factor of the
// product and of what it is added to. A batch of products of one shape is one call.
//
// All matrices are row-major and contiguous; op(x) is x or its transpose. The linear layer y = x Wᵀ
// of a weight W [out, in] is {.m = rows, .n = out, .k = in, .transpose_b = true}; its gradients are
// dx = dy W and dW += dyᵀ x.
// CPU: OpenBLAS sgemm. Repeatable: the same call with the same number of threads gives the same
// bits.
#pragma once

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/matmul_args.h"

namespace nsa {

// InvalidArgument when a tensor's size or type differs from its comment; Unimplemented on a backend
// that this build lacks.
absl::Status Matmul(const Exec& exec, const MatmulArgs& args);

}  // namespace nsa

// The same on a GPU (matmul.cu); the function above has checked the arguments.
namespace nsa::cuda {

absl::Status Matmul(const Exec& exec, const MatmulArgs& args);

}  // namespace nsa::cuda
