// Helpers to launch kernels from argument structs: typed pointers, the stream, grid sizes. Included
// by .cu files.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/device.h"
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
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", name, ": ", value, " (a multiple of 8 on CUDA); change the width"));
}

// Blocks for `items` at `per_block` each.
inline unsigned int GridFor(int64_t items, int64_t per_block) {
  return static_cast<unsigned int>((items + per_block - 1) / per_block);
}

// Number of ranges that a kernel cuts its sums over rows into: a constant, so that the order of the
// sums does not depend on the GPU.
inline constexpr int kSumBlocks = 256;

}  // namespace nsa::cuda
