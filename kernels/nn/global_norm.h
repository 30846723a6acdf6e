// The L2 norm of a flat buffer. Squares are summed in fp64 over fixed chunks of 4,096, the chunks
// in order, so the result does not depend on the number of threads.
#pragma once

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct GlobalNormArgs {
  ConstTensor values;  // fp32, any size
  Tensor norm;         // fp32 [1], overwritten; NaN or infinite when a value is
};

// InvalidArgument when a size or type is wrong.
absl::Status GlobalNorm(const Exec& exec, const GlobalNormArgs& args);

}  // namespace nsa
