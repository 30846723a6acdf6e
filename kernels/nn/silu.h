// SiLU: y = x · σ(x), element by element.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct SiluArgs {
  ConstTensor x;  // fp32, any size
  Tensor y;       // fp32, size of x; may be x itself
};

// InvalidArgument when sizes or types differ.
absl::Status Silu(const Exec& exec, const SiluArgs& args);

//   dx = dy · σ(x) · (1 + x · (1 − σ(x)))
struct SiluBackwardArgs {
  ConstTensor dy;  // fp32, any size
  ConstTensor x;   // fp32, size of dy: the input of Silu
  Tensor dx;       // fp32, size of dy, overwritten; may be dy itself
};

absl::Status SiluBackward(const Exec& exec, const SiluBackwardArgs& args);

}  // namespace nsa

// The same on a GPU (silu.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status Silu(const Exec& exec, const SiluArgs& args);
absl::Status SiluBackward(const Exec& exec, const SiluBackwardArgs& args);

}  // namespace nsa::cuda
