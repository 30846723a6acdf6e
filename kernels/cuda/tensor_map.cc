#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/status.h"

namespace nsa::cuda {
namespace {

constexpr int kBoxColumns = 64;

// The driver's function, which is found at run time: this program is not linked with the driver.
absl::StatusOr<decltype(&cuTensorMapEncodeTiled)> Encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  NSA_RETURN_IF_ERROR(ToStatus(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &found),
                               "tensor map"));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::FailedPreconditionError(
        "tensor map: driver: without cuTensorMapEncodeTiled (CUDA 12 or newer has it); install a "
        "driver of CUDA 13");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

absl::StatusOr<TensorMap> MapOf(const BoxedTensor& tensor) {
  static const auto encoder = Encoder();
  NSA_RETURN_IF_ERROR(encoder.status());
  const auto u64 = [](int value) { return static_cast<uint64_t>(value); };
  const auto u32 = [](int value) { return static_cast<uint32_t>(value); };
  const uint64_t sizes[] = {u64(tensor.width), u64(tensor.heads), u64(tensor.rows),
                            u64(tensor.batch)};
  // Bytes from one to the next, from the second dimension on.
  const uint64_t head = 2 * sizes[0], row = head * sizes[1], sequence = row * sizes[2];
  const uint64_t strides[] = {head, row, sequence};
  const uint32_t box[] = {kBoxColumns, u32(tensor.box_heads), u32(tensor.box_rows), 1};
  const uint32_t steps[] = {1, 1, 1, 1};
  TensorMap map{};
  const CUresult result =
      (*encoder)(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(tensor.data), sizes,
                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return absl::InternalError(absl::StrCat(
      "tensor map: [", tensor.batch, ", ", tensor.rows, ", ", tensor.heads, ", ", tensor.width,
      "] in boxes of [", tensor.box_rows, ", ", tensor.box_heads, ", ", kBoxColumns,
      "]: the driver refuses it (CUresult ", static_cast<int>(result), ")"));
}

}  // namespace nsa::cuda
