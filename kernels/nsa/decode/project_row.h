// The projections of one token on a GPU: RowLinear() and SplitProjections() in one kernel. What a
// warp has added up is rotated and written to q and to the caches at once.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nsa/layer/projections.h"
#include "kernels/tensor.h"

namespace nsa {

struct ProjectRowArgs {
  int64_t in = 0;
  ConstTensor x;     // bf16 [in]
  ConstTensor norm;  // bf16 [in], the weights of RMSNorm
  ConstTensor w;     // bf16 [ProjectionWidth, in]
  ConstTensor bias;  // optional bf16 [ProjectionWidth], added to the product
  // Requires shape.rows == 1 and `at`; ignores `wide`.
  SplitProjectionsArgs split;
};

}  // namespace nsa

namespace nsa::cuda {

// InvalidArgument when `in` is not a multiple of 8 or a tensor differs from its shape.
// Unimplemented in a program that was built without CUDA.
absl::Status ProjectRow(const Exec& exec, const ProjectRowArgs& args);

}  // namespace nsa::cuda
