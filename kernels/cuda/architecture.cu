// Finds which of the program's architectures the driver has loaded by asking for the attributes of
// an empty kernel: all kernels are compiled for the same architectures.
#include <cuda_runtime.h>

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/status.h"

namespace nsa::cuda {
namespace {

__global__ void EmptyKernel() {}

}  // namespace

absl::StatusOr<int32_t> KernelArchitecture() {
  cudaFuncAttributes attributes{};
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaFuncGetAttributes(&attributes, EmptyKernel), "cudaFuncGetAttributes"));
  return attributes.ptxVersion;
}

Overlap OverlapOf(bool next_may_start) {
  // An error shows in the launch itself.
  static const bool waits = KernelArchitecture().value_or(0) >= 90;
  return {.with_previous = waits, .with_next = waits && next_may_start};
}

absl::StatusOr<int32_t> SharedBytesPerBlock() {
  constexpr int kA100 = 163 * 1024;
  int device = 0, most = 0;
  NSA_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "cudaGetDevice"));
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute"));
  NSA_ASSIGN_OR_RETURN(const int32_t architecture, KernelArchitecture());
  return architecture < 90 ? std::min(most, kA100) : most;
}

}  // namespace nsa::cuda
