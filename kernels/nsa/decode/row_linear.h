// A linear layer for one token on a GPU, with what is in front of it and behind it in a block of
// the decoder: y = act(W · norm(x)) + add. Every weight is read once. Kernels of their own for
// the norm and the activation would each add a launch, and a token has many.
//
// The sums are fp32 and have a fixed order. The normalized x is not rounded to bf16, as it is
// between kernels of more rows.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nn/activation.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/tensor.h"

namespace nsa {

struct RowLinearArgs {
  int64_t in = 0, out = 0;
  ConstTensor x;     // bf16 [in]
  ConstTensor norm;  // optional bf16 [in]: norm(x) = RMSNorm(x) with these weights, else x
  ConstTensor w;     // bf16 [out, in]
  ConstTensor add;   // optional bf16 [out]
  Tensor y;          // bf16 [out], overwritten; may be `add`, not x
  std::optional<Activation> activation;  // act, else the identity
  float eps = kRmsNormEps;               // of the norm
};

}  // namespace nsa

namespace nsa::cuda {

// InvalidArgument when `in` is not a multiple of 8 or a tensor differs from its shape.
// Unimplemented in a program that was built without CUDA.
absl::Status RowLinear(const Exec& exec, const RowLinearArgs& args);

}  // namespace nsa::cuda
