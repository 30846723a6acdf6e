// The L2 norm of a flat buffer. Squares are summed in fp64 over fixed chunks of 4,096 elements, and
// the chunks are added in order, so the result does not depend on the number of threads.
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

}  // namespace nsa

// The same on a GPU (global_norm.cu); the function above has checked the arguments.
namespace nsa::cuda {

absl::Status GlobalNorm(const Exec& exec, const GlobalNormArgs& args);
// Bytes of Exec::workspace that GlobalNorm needs.
int64_t GlobalNormWorkspaceBytes(int64_t size);

}  // namespace nsa::cuda
