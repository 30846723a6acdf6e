// The L2 norm of a flat buffer. Squares are summed in fp64 over fixed chunks of 4,096 elements, and
// the chunks are added in a fixed order, so the result does not depend on the number of threads.
//
// A buffer whose parts are on several ranks: SquareSum() of each part, then NormOfSums() of all
// sums. It does not matter who computed a sum; other parts may give another last bit.
#pragma once

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct GlobalNormArgs {
  ConstTensor values;  // fp32, any size
  Tensor norm;         // fp32 [1], overwritten; NaN or infinite when a value is NaN or infinite
};

// InvalidArgument when a size or type is wrong.
absl::Status GlobalNorm(const Exec& exec, const GlobalNormArgs& args);

struct SquareSumArgs {
  ConstTensor values;     // fp32, any size
  double* sum = nullptr;  // [1], overwritten with Σ values²; where the values are
};

// InvalidArgument when a type is wrong or a pointer is missing. On CUDA it needs
// GlobalNormWorkspaceBytes() of Exec::workspace.
absl::Status SquareSum(const Exec& exec, const SquareSumArgs& args);

struct NormOfSumsArgs {
  const double* sums = nullptr;  // [count]
  int32_t count = 0;
  Tensor norm;  // fp32 [1], overwritten with √(sums[0] + sums[1] + …), added in this order
};

// InvalidArgument when a size or type is wrong or a pointer is missing.
absl::Status NormOfSums(const Exec& exec, const NormOfSumsArgs& args);

}  // namespace nsa

// The same on a GPU (global_norm.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status GlobalNorm(const Exec& exec, const GlobalNormArgs& args);
absl::Status SquareSum(const Exec& exec, const SquareSumArgs& args);
absl::Status NormOfSums(const Exec& exec, const NormOfSumsArgs& args);
// Bytes of Exec::workspace that GlobalNorm and SquareSum need.
int64_t GlobalNormWorkspaceBytes(int64_t size);

}  // namespace nsa::cuda
