// The bias of a linear layer, in a matrix of rows: y += bias, and its gradient.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// y[r, i] += bias[i].
struct AddBiasArgs {
  int64_t rows = 0;
  int64_t width = 0;  // on a GPU a multiple of 8
  ConstTensor bias;   // fp32 [width]
  Tensor y;           // fp32 [rows, width], added to
};

// InvalidArgument when a tensor's size or type differs from its comment.
absl::Status AddBias(const Exec& exec, const AddBiasArgs& args);

// dbias[i] += Σ_r dy[r, i]. On the CPU rows are added in order; on a GPU in a fixed order that does
// not depend on the GPU.
struct BiasGradientArgs {
  int64_t rows = 0;
  int64_t width = 0;
  ConstTensor dy;  // fp32 [rows, width]
  Tensor dbias;    // fp32 [width], added to; fp32 on a GPU too
};

absl::Status BiasGradient(const Exec& exec, const BiasGradientArgs& args);

}  // namespace nsa

// The same on a GPU (bias.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status AddBias(const Exec& exec, const AddBiasArgs& args);
absl::Status BiasGradient(const Exec& exec, const BiasGradientArgs& args);
// Bytes of Exec::workspace that BiasGradient needs.
int64_t BiasGradientWorkspaceBytes(int64_t width);

}  // namespace nsa::cuda
