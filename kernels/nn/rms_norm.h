// RMSNorm (Zhang & Sennrich 2019), row by row: y = x · r · weight with r = 1/√(mean(x²) + eps).
// Means are computed in fp32 over eight interleaved partial sums; results do not depend on the
// number of threads.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

inline constexpr float kRmsNormEps = 1e-6f;  // where a model does not say another

struct RmsNormArgs {
  int64_t rows = 0;
  int64_t dim = 0;
  ConstTensor x;       // fp32 [rows, dim]
  ConstTensor weight;  // fp32 [dim]
  Tensor y;            // fp32 [rows, dim], overwritten; must not be x
  Tensor rstd;         // fp32 [rows]: r, for backward; optional
  float eps = kRmsNormEps;
};

// InvalidArgument when a tensor's size or type differs from its comment.
absl::Status RmsNorm(const Exec& exec, const RmsNormArgs& args);

//   dx = r · (dy·weight − x · r² · mean(dy·weight·x)),   dweight = Σ_rows dy · x · r
struct RmsNormBackwardArgs {
  int64_t rows = 0;
  int64_t dim = 0;
  ConstTensor dy;      // fp32 [rows, dim]
  ConstTensor x;       // fp32 [rows, dim]
  ConstTensor weight;  // fp32 [dim]
  ConstTensor rstd;    // fp32 [rows]
  Tensor dx;           // fp32 [rows, dim], added to (it holds the gradient of the residual);
                       // must be neither dy nor x
  Tensor dweight;      // fp32 [dim], added to; rows are summed in order
  // Optional: fp32 [rows, dim], the output of RmsNorm() again, with the same bits; must be none of
  // the others.
  Tensor y;
};

absl::Status RmsNormBackward(const Exec& exec, const RmsNormBackwardArgs& args);

}  // namespace nsa

// The same on a GPU (rms_norm.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status RmsNorm(const Exec& exec, const RmsNormArgs& args);
absl::Status RmsNormBackward(const Exec& exec, const RmsNormBackwardArgs& args);
// Bytes of Exec::workspace that RmsNormBackward needs.
int64_t RmsNormBackwardWorkspaceBytes(int64_t dim);

}  // namespace nsa::cuda
