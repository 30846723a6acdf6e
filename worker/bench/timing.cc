#include "worker/bench/timing.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/status.h"
#include "kernels/nn/copy.h"
#include "kernels/nn/matmul.h"
#include "worker/bench/data.h"

namespace nsa::bench {
namespace {

using cuda::ToStatus;

constexpr int64_t kFlushBytes = int64_t{256} << 20;  // several times the L2 of any GPU so far
constexpr int64_t kBlasBytes = 64 << 20;

// Seconds per launch, over many launches of a tiny memset, which is launched like a kernel.
absl::StatusOr<double> SecondsPerLaunch(const Gpu& gpu, bool graph) {
  constexpr int kLaunches = 1000;
  auto* stream = static_cast<cudaStream_t>(gpu.exec().stream);
  void* word = nullptr;
  NSA_RETURN_IF_ERROR(ToStatus(cudaMalloc(&word, 256), "cudaMalloc"));
  const auto launch = [&]() -> absl::Status {
    for (int i = 0; i < kLaunches; ++i) {
      NSA_RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(word, 0, 256, stream), "launch"));
    }
    return absl::OkStatus();
  };
  absl::StatusOr<double> milliseconds = 0.0;
  if (graph) {
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t executable = nullptr;
    NSA_RETURN_IF_ERROR(
        ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
    NSA_RETURN_IF_ERROR(launch());
    NSA_RETURN_IF_ERROR(ToStatus(cudaStreamEndCapture(stream, &captured), "capture"));
    NSA_RETURN_IF_ERROR(ToStatus(cudaGraphInstantiate(&executable, captured, 0), "instantiate"));
    milliseconds =
        gpu.Time(5, [&] { return ToStatus(cudaGraphLaunch(executable, stream), "graph"); });
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(captured);
  } else {
    milliseconds = gpu.Time(5, launch);
  }
  cudaFree(word);
  NSA_RETURN_IF_ERROR(milliseconds.status());
  return *milliseconds / 1e3 / kLaunches;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(int64_t workspace_bytes) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    return absl::UnavailableError(
        "GPU: none on this machine (at least 1); run nsa-bench where nvidia-smi shows one");
  }
  std::unique_ptr<Gpu> gpu(new Gpu());
  cudaDeviceProp properties{};
  NSA_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, 0), "device"));
  gpu->name_ = properties.name;
  cudaStream_t stream = nullptr;
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaStreamCreateWithPriority(&stream, cudaStreamDefault, -cuda::Side::kMainPriority),
               "stream"));
  gpu->stream_ = stream;
  gpu->workspace_bytes_ = workspace_bytes;
  NSA_RETURN_IF_ERROR(ToStatus(cudaMalloc(&gpu->workspace_, workspace_bytes), "workspace"));
  NSA_RETURN_IF_ERROR(ToStatus(cudaMalloc(&gpu->blas_workspace_, kBlasBytes), "workspace"));
  NSA_RETURN_IF_ERROR(ToStatus(cudaMalloc(&gpu->flush_, kFlushBytes), "workspace"));
  NSA_ASSIGN_OR_RETURN(gpu->side_, cuda::Side::Create());
  NSA_ASSIGN_OR_RETURN(gpu->blas_, cuda::Blas::Create(gpu->blas_workspace_, kBlasBytes,
                                                      cuda::DefaultAlgorithmFolder()));
  return gpu;
}

Gpu::~Gpu() {
  blas_.reset();
  for (void* memory : {workspace_, blas_workspace_, flush_}) cudaFree(memory);
  if (stream_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

Exec Gpu::exec() const {
  return {.backend = Backend::kCuda,
          .stream = stream_,
          .blas = blas_.get(),
          .workspace = workspace_,
          .workspace_bytes = workspace_bytes_,
          .side = side_.get()};
}

const std::string& Gpu::blas() const { return blas_->description(); }

absl::StatusOr<double> Gpu::Time(int repeats, const std::function<absl::Status()>& call) const {
  auto* stream = static_cast<cudaStream_t>(stream_);
  cudaEvent_t begin = nullptr, end = nullptr;
  NSA_RETURN_IF_ERROR(ToStatus(cudaEventCreate(&begin), "event"));
  NSA_RETURN_IF_ERROR(ToStatus(cudaEventCreate(&end), "event"));
  std::vector<float> times;
  absl::Status status;
  for (int i = -2; i < repeats && status.ok(); ++i) {
    status = ToStatus(cudaMemsetAsync(flush_, i & 0xff, kFlushBytes, stream), "flush");
    cudaEventRecord(begin, stream);
    status.Update(call());
    cudaEventRecord(end, stream);
    status.Update(ToStatus(cudaEventSynchronize(end), "synchronize"));
    float time = 0;
    cudaEventElapsedTime(&time, begin, end);
    if (i >= 0) times.push_back(time);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  NSA_RETURN_IF_ERROR(status);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Cycles a second of all multiprocessors at the highest clock.
absl::StatusOr<double> CyclesPerSecond() {
  int multiprocessors = 0, kilohertz = 0;
  NSA_RETURN_IF_ERROR(ToStatus(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "device"));
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, 0), "device"));
  return 1e3 * multiprocessors * kilohertz;
}

absl::StatusOr<Ceilings> MeasureCeilings(const Gpu& gpu) {
  Ceilings out;
  NSA_ASSIGN_OR_RETURN(out.cycles, CyclesPerSecond());
  const Exec exec = gpu.exec();
  {
    constexpr int64_t kSide = 8192;
    Data data(exec);
    const MatmulArgs product{.m = kSide,
                             .n = kSide,
                             .k = kSide,
                             .transpose_b = true,
                             .a = data.Random(kSide * kSide, 1),
                             .b = data.Random(kSide * kSide, 2),
                             .c = data.Out(kSide * kSide)};
    NSA_RETURN_IF_ERROR(data.status());
    NSA_ASSIGN_OR_RETURN(const double ms, gpu.Time(10, [&] { return Matmul(exec, product); }));
    out.gemm_flops = 2.0 * kSide * kSide * kSide / (ms / 1e3);
  }
  {
    constexpr int64_t kSize = int64_t{4} << 30;
    Data data(exec);
    const Tensor from = data.Raw(kSize, DType::kU8), to = data.Raw(kSize, DType::kU8);
    NSA_RETURN_IF_ERROR(data.status());
    NSA_ASSIGN_OR_RETURN(const double ms, gpu.Time(10, [&] { return Copy(exec, from, to); }));
    out.copy_bytes = 2.0 * kSize / (ms / 1e3);
  }
  NSA_ASSIGN_OR_RETURN(out.launch_seconds, SecondsPerLaunch(gpu, false));
  NSA_ASSIGN_OR_RETURN(out.graph_launch_seconds, SecondsPerLaunch(gpu, true));
  return out;
}

}  // namespace nsa::bench
