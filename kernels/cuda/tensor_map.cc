#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/status.h"

namespace nsa::cuda {
namespace {

constexpr int kBoxRows = 64, kBoxColumns = 64;

// The driver's function, which is found at run time: this program is not linked with the driver.
absl::StatusOr<decltype(&cuTensorMapEncodeTiled)> Encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  NSA_RETURN_IF_ERROR(ToStatus(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &found),
                               "tensor map"));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::UnimplementedError(
        "tensor map: the driver has no cuTensorMapEncodeTiled; install a driver of CUDA 13");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

absl::StatusOr<TensorMap> RowBoxes(const void* data, int batch, int rows, int groups, int width) {
  static const auto encoder = Encoder();
  NSA_RETURN_IF_ERROR(encoder.status());
  constexpr uint64_t kElement = 2;
  const auto u64 = [](int value) { return static_cast<uint64_t>(value); };
  const uint64_t sizes[] = {u64(width), u64(groups), u64(rows), u64(batch)};
  // Bytes from one to the next, from the second dimension on.
  const uint64_t strides[] = {kElement * u64(width), kElement * u64(width) * u64(groups),
                              kElement * u64(width) * u64(groups) * u64(rows)};
  const uint32_t box[] = {kBoxColumns, 1, kBoxRows, 1};
  const uint32_t steps[] = {1, 1, 1, 1};
  TensorMap map{};
  const CUresult result =
      (*encoder)(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), sizes, strides,
                 box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return absl::InternalError(absl::StrCat("tensor map: [", batch, ", ", rows, ", ", groups, ", ",
                                          width, "]: the driver refuses it (CUresult ",
                                          static_cast<int>(result), ")"));
}

}  // namespace nsa::cuda
