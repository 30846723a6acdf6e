// The function between the two matrices of an MLP, element by element:
//
//   silu:   y = x · σ(x)
//   relu2:  y = max(0, x)²        (Primer, arXiv 2109.08668)
//
// NaN stays NaN in both, forward and backward.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

enum class Activation { kSilu, kRelu2 };

struct ActivateArgs {
  ConstTensor x;  // fp32, any size
  Tensor y;       // fp32, size of x; may be x itself
  Activation kind = Activation::kSilu;
};

// InvalidArgument when sizes or types differ.
absl::Status Activate(const Exec& exec, const ActivateArgs& args);

//   silu:   dx = dy · σ(x) · (1 + x · (1 − σ(x)))
//   relu2:  dx = dy · 2 · max(0, x)
struct ActivateBackwardArgs {
  ConstTensor dy;  // fp32, any size
  ConstTensor x;   // fp32, size of dy: the input of Activate
  Tensor dx;       // fp32, size of dy, overwritten; may be dy itself
  Activation kind = Activation::kSilu;
  // Optional: fp32, size of dy, the output of Activate() again, with the same bits. May be x
  // itself.
  Tensor y;
};

absl::Status ActivateBackward(const Exec& exec, const ActivateBackwardArgs& args);

}  // namespace nsa

// The same on a GPU (activation.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status Activate(const Exec& exec, const ActivateArgs& args);
absl::Status ActivateBackward(const Exec& exec, const ActivateBackwardArgs& args);

}  // namespace nsa::cuda
