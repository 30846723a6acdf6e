// Maps of tensors for Hopper's copy engine (cuda/tensor_box.cuh), made on the host.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace nsa::cuda {

using TensorMap = CUtensorMap;

// A map of the bf16 tensor [batch, rows, groups, width] at `data`, in boxes of one group's 64 rows
// and 64 columns. `data` is a multiple of 16 bytes, `width` of 8 columns, no size is 0. Internal
// when the driver refuses; Unimplemented when it has no such maps (driver older than CUDA 12).
absl::StatusOr<TensorMap> RowBoxes(const void* data, int batch, int rows, int groups, int width);

}  // namespace nsa::cuda
