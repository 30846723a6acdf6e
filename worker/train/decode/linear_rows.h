// The linear layers of decoding, with what is in front of them and behind them in a block:
//
//   y = act(norm(x) Wᵀ) + add
//
// A single row is a product of a matrix and a vector, in which every weight is read once: on a GPU
// one kernel (kernels/nsa/decode/row_linear.h), on the CPU without copies.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nn/activation.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/tensor.h"
#include "worker/train/model/linear.h"

namespace nsa::train {

struct LinearRowsArgs {
  LinearShape shape;
  // The tensors may have more rows than the shape. On a GPU they have kDecodeRows, unless the shape
  // has one, and those from shape.rows on may be overwritten.
  ConstTensor x;     // [rows, in]
  ConstTensor norm;  // optional [in]: norm(x) = RMSNorm(x) with these weights, else x
  float eps = kRmsNormEps;
  Tensor normalized;                     // [rows, in], overwritten when there is a norm
  ConstTensor w;                         // [out, in]
  ConstTensor add;                       // optional [rows, out]
  Tensor y;                              // [rows, out], overwritten
  std::optional<Activation> activation;  // act, else the identity; not with `add`
};

// Errors are those of the kernels.
absl::Status LinearRows(const Exec& exec, const LinearRowsArgs& args);

}  // namespace nsa::train
