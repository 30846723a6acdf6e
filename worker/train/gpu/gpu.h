// This rank's GPU: its stream, its matrix library and the scratch memory of its kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/side.h"
#include "kernels/exec.h"

namespace nsa {

class Gpu {
 public:
  // Starts CUDA and loads cuBLASLt. FailedPrecondition or NotFound, with what to do, when one of
  // them cannot be used; Unimplemented in a program without CUDA.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open();

  // Provides at least `bytes` as Exec::workspace. To be called before the first exec().
  absl::Status TakeScratch(int64_t bytes);

  // Chooses the matrix library's algorithms for `products`, and times those that are not known yet.
  // Timing takes memory for a moment, so it comes before the arenas are allocated.
  absl::Status Plan(std::span<const MatmulArgs> products) {
    return blas_->Plan(stream_.get(), products);
  }
  // Products whose algorithm could not be timed; a fallback.
  int64_t untimed_products() const { return blas_->untimed_shapes(); }

  // Kernels are enqueued on one stream; those that may run at the same time use its side streams.
  Exec exec() const;
  void* stream() const { return stream_.get(); }

  const cuda::DeviceInfo& info() const { return info_; }
  // "NVIDIA H200 (sm_90, 139.8 GiB), kernels for sm_90, CUDA 13.0, cuBLASLt 13.0.2
  // (/usr/…/libcublasLt.so.13)".
  std::string Description() const;

  // Device memory in use on this GPU, including CUDA's own and that of other processes.
  int64_t UsedBytes() const;

 private:
  Gpu() = default;

  cuda::DeviceInfo info_;
  int32_t kernels_ = 0;  // the architecture that they are compiled for
  cuda::Stream stream_;
  std::unique_ptr<cuda::Side> side_;
  cuda::DeviceMemory blas_workspace_;
  std::unique_ptr<cuda::Blas> blas_;
  cuda::DeviceMemory scratch_;
};

}  // namespace nsa
