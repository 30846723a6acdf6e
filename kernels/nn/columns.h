// Splits a wide matrix into several narrow ones by columns, and joins them again. One product
// computes the projections of q and of all keys and values; its columns are then split into the
// separate tensors, and in backward their gradients are joined. CPU only: on a GPU these functions
// return Unimplemented, and kernels/nsa/layer/projections.h does this together with the rotation.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// parts[i] ← columns [Σ_{j<i} width_j, + width_i) of `wide`, where width_i = parts[i].size / rows.
struct SplitColumnsArgs {
  int64_t rows = 0;
  ConstTensor wide;               // fp32 [rows, Σ width]
  std::span<const Tensor> parts;  // fp32 [rows, width_i] each, overwritten
};

// InvalidArgument when sizes or types do not fit together.
absl::Status SplitColumns(const Exec& exec, const SplitColumnsArgs& args);

// The reverse: wide ← parts side by side.
struct JoinColumnsArgs {
  int64_t rows = 0;
  std::span<const ConstTensor> parts;  // fp32 [rows, width_i] each
  Tensor wide;                         // fp32 [rows, Σ width], overwritten
};

absl::Status JoinColumns(const Exec& exec, const JoinColumnsArgs& args);

}  // namespace nsa
