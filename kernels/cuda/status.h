// Converts cudaError_t to absl::Status. Included by .cu files and by host code that calls the CUDA
// runtime; other code needs no CUDA header.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nsa::cuda {

// `what` names the call or the kernel. Out of memory is ResourceExhausted, every other error is
// Internal: after an Internal error the process's CUDA context is unusable and the worker must end.
inline absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

}  // namespace nsa::cuda
