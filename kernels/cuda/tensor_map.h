// Maps of tensors for Hopper's copy engine (cuda/tensor_box.cuh), made on the host.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace nsa::cuda {

using TensorMap = CUtensorMap;

// A bf16 tensor [batch, rows, heads, width] and the box that a copy takes of it: box_rows rows,
// box_heads heads of each (1 to 256 both), 64 columns.
struct BoxedTensor {
  const void* data;  // a multiple of 16 bytes
  int batch, rows, heads;
  int width;  // a multiple of 8
  int box_rows, box_heads;
};

// No size may be 0. FailedPrecondition when the driver knows no maps (older than CUDA 12); Internal
// when it refuses this one.
absl::StatusOr<TensorMap> MapOf(const BoxedTensor& tensor);

}  // namespace nsa::cuda
