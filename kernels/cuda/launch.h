// Launch(), which launches every kernel, and what goes with it: typed pointers, the stream, grid
// sizes. Included by .cu files.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/begin.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mark.h"
#include "kernels/cuda/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa::cuda {

inline cudaStream_t StreamOf(const Exec& exec) { return static_cast<cudaStream_t>(exec.stream); }

template <class T>
T* DataOf(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}
template <class T>
const T* DataOf(const ConstTensor& tensor) {
  return static_cast<const T*>(tensor.data);
}

// Lets `kernel` use more than 48 KiB of shared memory per block. Cheap; the runtime keeps the
// setting per device and context. FailedPrecondition when the GPU has less.
template <class Kernel>
absl::Status AllowShared(Kernel* kernel, int bytes, const char* what) {
  if (bytes <= 48 * 1024) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const int32_t most, SharedBytesPerBlock());
  if (bytes > most) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": shared memory: ", bytes, " bytes a block (at most ", most,
        " on this GPU); use narrower heads (model.d_k, model.d_v) or a GPU with more"));
  }
  return ToStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  what);
}

// How a kernel is launched.
struct LaunchShape {
  dim3 grid = 1;   // thread blocks
  dim3 block = 1;  // threads in each
  int shared = 0;  // bytes of dynamic shared memory per thread block
  // Whether the thread blocks of the next kernel may move in as soon as all of this one run or have
  // run; otherwise they do once all of these have ended. Waiting thread blocks occupy a
  // multiprocessor that those of another stream could use, so kernels that run long say false.
  bool next_may_start = true;
};

// Enqueues `kernel`, whose first parameter is Begin, with `arguments` for the others. `what` names
// it in errors. Where the kernels' code can (OverlapOf()), it may begin before the kernel in
// front of it has ended (kernels/cuda/begin.cuh). Captured launches keep this as programmatic edges
// of the graph, which every driver of CUDA 13 supports.
template <class... Parameters, class... Arguments>
absl::Status Launch(const Exec& exec, const char* what, void (*kernel)(Begin, Parameters...),
                    const LaunchShape& shape, Arguments&&... arguments) {
  static_assert(CUDART_VERSION >= 12030, "older versions cannot capture overlapping launches");
  NSA_RETURN_IF_ERROR(AllowShared(kernel, shape.shared, what));
  const auto threads = static_cast<int32_t>(shape.block.x * shape.block.y * shape.block.z);
  NSA_ASSIGN_OR_RETURN(
      const int32_t shared,
      SharedToLaunchWith(reinterpret_cast<const void*>(kernel), threads, shape.shared));
  if (shared > shape.shared) NSA_RETURN_IF_ERROR(AllowShared(kernel, shared, what));
  const Overlap overlap = OverlapOf(shape.next_may_start);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = StreamOf(exec);
  config.attrs = &attribute;
  config.numAttrs = overlap.with_previous ? 1 : 0;
  Begin begin{.mark = {}, .next_may_start = overlap.with_next};
  if (exec.mark != nullptr) begin.mark = std::exchange(*exec.mark, PendingMark());
  const cudaError_t error =
      cudaLaunchKernelEx(&config, kernel, begin, std::forward<Arguments>(arguments)...);
  if (error != cudaSuccess) cudaGetLastError();  // clear it: it is reported here
  return ToStatus(error, what);
}

// The Exec's scratch memory. ResourceExhausted when it is smaller than `bytes`.
inline absl::StatusOr<void*> WorkspaceOf(const Exec& exec, int64_t bytes, const char* what) {
  if (bytes <= exec.workspace_bytes) return exec.workspace;
  return absl::ResourceExhaustedError(absl::StrCat(what, ": workspace: ", exec.workspace_bytes,
                                                   " bytes (at least ", bytes,
                                                   "); plan it with WorkspaceBytes()"));
}

// InvalidArgument unless `value` is a multiple of 8: rows are read 16 bytes at a time.
inline absl::Status CheckMultipleOf8(const char* what, const char* name, int64_t value) {
  if (value % 8 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ", name, ": ", value, " (must be a multiple of 8 on CUDA); change the width"));
}

// Blocks for `items` at `per_block` each.
inline unsigned int GridFor(int64_t items, int64_t per_block) {
  return static_cast<unsigned int>((items + per_block - 1) / per_block);
}

}  // namespace nsa::cuda
