// cudaError_t as absl::Status. Included by .cu files and by host code that calls the CUDA runtime;
// nothing else needs a CUDA header.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nsa::cuda {

// `what` names the call or the kernel. Memory errors are ResourceExhausted, all others Internal:
// after one of those the process's CUDA context cannot be used any more and the worker must end.
inline absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

// Whether the launch that was just made was accepted.
inline absl::Status CheckLaunch(const char* kernel) { return ToStatus(cudaGetLastError(), kernel); }

}  // namespace nsa::cuda
