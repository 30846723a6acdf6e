// Which of the program's codes the driver has taken: an empty kernel tells, since all are compiled
// alike.
#include <cuda_runtime.h>

#include "common/status.h"
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

}  // namespace nsa::cuda
