// Where a kernel runs. No CUDA header is needed to name a stream.
#pragma once

#include <cstdint>

namespace nsa {

namespace cuda {
class Blas;
class Side;
struct PendingMark;
}  // namespace cuda

enum class Backend { kCpu, kCuda };

struct Exec {
  Backend backend = Backend::kCpu;

  // CUDA only: the stream (cudaStream_t) that everything is enqueued on, the matrix library, and
  // device scratch memory that a kernel's work may use (the stream orders this work). The size
  // needed: …WorkspaceBytes() of the families, PlanScratch() of the layer.
  void* stream = nullptr;
  cuda::Blas* blas = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  // A second stream, for kernels that may run concurrently with those of `stream`
  // (kernels/cuda/side.h). Null: everything runs in order on `stream`.
  cuda::Side* side = nullptr;
  // A number that the next kernel writes to host memory when it begins (kernels/cuda/mark.h). May
  // be null.
  cuda::PendingMark* mark = nullptr;

  // Called with the name of a kernel family when it is entered, e.g. for the status page. May be
  // null. Must be cheap.
  void (*on_kernel)(void* context, const char* name) = nullptr;
  void* on_kernel_context = nullptr;

  void Enter(const char* name) const {
    if (on_kernel != nullptr) on_kernel(on_kernel_context, name);
  }
};

}  // namespace nsa
