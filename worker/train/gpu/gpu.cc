#include "worker/train/gpu/gpu.h"

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

constexpr int64_t kBlasWorkspace = int64_t{64} << 20;
constexpr int kOldestCapability = 80;

}  // namespace

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open() {
  auto gpu = std::unique_ptr<Gpu>(new Gpu());
  NSA_ASSIGN_OR_RETURN(gpu->info_, cuda::ReadDevice());
  if (gpu->info_.compute_capability < kOldestCapability) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "CUDA: %s has compute capability %.1f (at least 8.0); take an Ampere GPU or "
        "a newer one, or device: cpu",
        gpu->info_.name, gpu->info_.compute_capability / 10.0));
  }
  NSA_ASSIGN_OR_RETURN(gpu->kernels_, cuda::KernelArchitecture());
  NSA_ASSIGN_OR_RETURN(gpu->stream_, cuda::Stream::Create(cuda::Side::kMainPriority));
  NSA_ASSIGN_OR_RETURN(gpu->side_, cuda::Side::Create());
  NSA_ASSIGN_OR_RETURN(gpu->blas_workspace_,
                       cuda::DeviceMemory::Allocate(kBlasWorkspace, "matrix products"));
  NSA_ASSIGN_OR_RETURN(gpu->blas_, cuda::Blas::Create(gpu->blas_workspace_.data(), kBlasWorkspace,
                                                      cuda::DefaultAlgorithmFolder()));
  return gpu;
}

absl::Status Gpu::TakeScratch(int64_t bytes) {
  if (bytes <= scratch_.bytes()) return absl::OkStatus();
  scratch_ = {};
  NSA_ASSIGN_OR_RETURN(scratch_, cuda::DeviceMemory::Allocate(bytes, "kernel workspace"));
  return absl::OkStatus();
}

Exec Gpu::exec() const {
  return {.backend = Backend::kCuda,
          .stream = stream_.get(),
          .blas = blas_.get(),
          .workspace = scratch_.data(),
          .workspace_bytes = scratch_.bytes(),
          .side = side_.get()};
}

std::string Gpu::Description() const {
  return absl::StrFormat(
      "%s (sm_%d, %.1f GiB), kernels for sm_%d, CUDA %d.%d, %s", info_.name,
      info_.compute_capability, static_cast<double>(info_.total_bytes) / (1 << 30), kernels_,
      info_.runtime_version / 1000, info_.runtime_version / 10 % 100, blas_->description());
}

int64_t Gpu::UsedBytes() const {
  const absl::StatusOr<int64_t> free = cuda::FreeBytes();
  return free.ok() ? info_.total_bytes - *free : 0;
}

}  // namespace nsa::train
