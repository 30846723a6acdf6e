// Finds which of the program's architectures the driver has loaded by asking for the attributes of
// an empty kernel: all kernels are compiled for the same architectures.
#include <cuda_runtime.h>

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/status.h"

namespace nsa::cuda {
namespace {

__global__ void EmptyKernel() {}

bool imitates_a100 = false, imitates_smallest = false;

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
  int device = 0, most = 0;
  NSA_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "cudaGetDevice"));
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute"));
  NSA_ASSIGN_OR_RETURN(const int32_t architecture, KernelArchitecture());
  if (imitates_smallest) most = std::min(most, kSharedOfSmallest);
  return architecture < 90 ? std::min(most, kSharedOfA100) : most;
}

void ImitateOccupancyOfA100() { imitates_a100 = true; }
void ImitateLeastSharedMemory() { imitates_smallest = true; }

absl::StatusOr<int32_t> SharedToLaunchWith(const void* kernel, int32_t threads, int32_t shared) {
  if (!imitates_a100) return shared;
  int device = 0, all = 0, blocks = 0;
  cudaFuncAttributes attributes{};
  NSA_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "cudaGetDevice"));
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
               "cudaDeviceGetAttribute"));
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes"));
  NSA_RETURN_IF_ERROR(ToStatus(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                                   &blocks, kernel, threads, static_cast<size_t>(shared)),
                               "cudaOccupancyMaxActiveBlocksPerMultiprocessor"));
  const auto fixed = static_cast<int32_t>(attributes.sharedSizeBytes);
  const int32_t on_a100 = BlocksIn(kSharedOfA100Multiprocessor, fixed + shared);
  return blocks <= on_a100 ? shared : LeastFor(on_a100, all) - fixed;
}

}  // namespace nsa::cuda
