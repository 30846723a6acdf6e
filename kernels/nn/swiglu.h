// The gate of an MLP (SwiGLU, arXiv 2002.05202). One product has made both halves of a row,
// x = [gate | up]:
//
//   y = silu(gate) · up,   silu(g) = g · σ(g)
//
// NaN stays NaN, forward and backward.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

struct SwigluArgs {
  int64_t rows = 0;
  int64_t width = 0;  // of a half; on a GPU a multiple of 8
  ConstTensor x;      // fp32 [rows, 2·width]
  Tensor y;           // fp32 [rows, width], overwritten; must not overlap x
};

// InvalidArgument when a tensor's size or type differs from its comment.
absl::Status Swiglu(const Exec& exec, const SwigluArgs& args);

//   d_gate = dy · up · σ(gate) · (1 + gate · (1 − σ(gate))),   d_up = dy · silu(gate)
struct SwigluBackwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  ConstTensor dy;  // fp32 [rows, width]
  ConstTensor x;   // fp32 [rows, 2·width]: the input of Swiglu()
  Tensor dx;       // fp32 [rows, 2·width], overwritten; may be x itself
  // Optional: fp32 [rows, width], the output of Swiglu() again, with the same bits. May be dy
  // itself.
  Tensor y;
};

absl::Status SwigluBackward(const Exec& exec, const SwigluBackwardArgs& args);

}  // namespace nsa

// The same on a GPU (swiglu.cu); the functions above have checked the arguments.
namespace nsa::cuda {

absl::Status Swiglu(const Exec& exec, const SwigluArgs& args);
absl::Status SwigluBackward(const Exec& exec, const SwigluBackwardArgs& args);

}  // namespace nsa::cuda
