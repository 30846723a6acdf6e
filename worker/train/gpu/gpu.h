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

namespace nsa::train {

class Gpu {
 public:
  // Starts CUDA and loads cuBLASLt. FailedPrecondition or NotFound when one of them cannot be used;
  // the message says what to do. Unimplemented in a program that was built without CUDA.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open();

  // Provides at least `bytes` as Exec::workspace. To be called before the first exec().
  absl::Status TakeScratch(int64_t bytes);

  // Chooses the matrix library's algorithms for `products`; times the candidates for products that
  // are not known yet. Timing takes memory for a moment, so call this before allocating the arenas.
  absl::Status Plan(std::span<const MatmulArgs> products) {
    return blas_->Plan(stream_.get(), products);
  }
  // The matrix library, whose choices a checkpoint records.
  cuda::Blas& blas() const { return *blas_; }
  // Number of products whose algorithm could not be timed. Counted as a fallback.
  int64_t untimed_products() const { return blas_->untimed_shapes(); }

  // What kernels run with: one stream, and a second for kernels that may run at the same time.
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
  int32_t kernels_ = 0;  // the architecture that the kernels are compiled for
  cuda::Stream stream_;
  std::unique_ptr<cuda::Side> side_;
  cuda::DeviceMemory blas_workspace_;
  std::unique_ptr<cuda::Blas> blas_;
  cuda::DeviceMemory scratch_;
};

}  // namespace nsa::train
