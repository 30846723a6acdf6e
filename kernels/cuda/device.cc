#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/status.h"

namespace nsa::cuda {
namespace {

cudaStream_t ToStream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t ToEvent(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

bool BuiltWithCuda() { return true; }

int DeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clear it: a machine without a GPU is not an error
    return 0;
  }
  return count;
}

absl::StatusOr<DeviceInfo> ReadDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "CUDA: ", error == cudaSuccess ? "no GPU is visible" : cudaGetErrorString(error),
        " (a GPU and NVIDIA driver 580 or newer); check nvidia-smi and CUDA_VISIBLE_DEVICES"));
  }
  NSA_RETURN_IF_ERROR(ToStatus(cudaSetDevice(0), "cudaSetDevice"));
  cudaDeviceProp properties{};
  NSA_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  DeviceInfo info;
  info.name = properties.name;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  size_t free = 0, total = 0;
  NSA_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  info.free_bytes = static_cast<int64_t>(free);
  info.total_bytes = static_cast<int64_t>(total);
  NSA_RETURN_IF_ERROR(ToStatus(cudaDriverGetVersion(&info.driver_version), "cudaDriverGetVersion"));
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaRuntimeGetVersion(&info.runtime_version), "cudaRuntimeGetVersion"));
  return info;
}

absl::StatusOr<int64_t> FreeBytes() {
  size_t free = 0, total = 0;
  NSA_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return static_cast<int64_t>(free);
}

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(int64_t bytes, const std::string& what) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  const cudaError_t error = cudaMalloc(&memory.data_, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    memory.data_ = nullptr;
    return absl::ResourceExhaustedError(absl::StrCat(
        "GPU memory: ", bytes >> 20, " MiB for ", what, " (", FreeBytes().value_or(0) >> 20,
        " MiB are free); take a smaller train.batch_size or seq_len, or "
        "gradient_checkpointing: true"));
  }
  NSA_RETURN_IF_ERROR(ToStatus(error, "cudaMalloc"));
  memory.bytes_ = bytes;
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaMemset(memory.data_, 0, static_cast<size_t>(bytes)), "cudaMemset"));
  // cudaMemset runs on the default stream, for which our streams do not wait: on a GPU that another
  // program keeps busy, the zeros could overwrite later writes.
  NSA_RETURN_IF_ERROR(Synchronize(nullptr));
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(int64_t bytes, const std::string& what) {
  PinnedMemory memory;
  if (bytes == 0) return memory;
  const auto size = static_cast<size_t>(bytes);
  const cudaError_t error = cudaHostAlloc(&memory.data_, size, cudaHostAllocPortable);
  if (error != cudaSuccess) {
    memory.data_ = nullptr;
    return ToStatus(error, absl::StrCat("pinned host memory for ", what).c_str());
  }
  memory.bytes_ = bytes;
  std::fill_n(static_cast<char*>(memory.data_), size, char{0});
  return memory;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

absl::StatusOr<Stream> Stream::Create(int32_t priority) {
  cudaStream_t stream = nullptr;
  // CUDA priorities count down from 0: a lower number is a higher priority.
  NSA_RETURN_IF_ERROR(ToStatus(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -priority), "cudaStreamCreate"));
  Stream made;
  made.stream_ = stream;
  return made;
}

Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(ToStream(stream_));
}

absl::Status Synchronize(void* stream) {
  return ToStatus(cudaStreamSynchronize(ToStream(stream)), "cudaStreamSynchronize");
}

absl::StatusOr<bool> Done(void* stream) {
  const cudaError_t error = cudaStreamQuery(ToStream(stream));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // clear it: not an error, and the next launch must not report it
    return false;
  }
  NSA_RETURN_IF_ERROR(ToStatus(error, "a kernel of the step"));
  return true;
}

absl::StatusOr<Event> Event::Create() {
  cudaEvent_t event = nullptr;
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
  Event made;
  made.event_ = event;
  return made;
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(ToEvent(event_));
}

absl::Status Event::Record(void* stream) {
  return ToStatus(cudaEventRecord(ToEvent(event_), ToStream(stream)), "cudaEventRecord");
}

absl::Status Event::Wait(void* stream) const {
  return ToStatus(cudaStreamWaitEvent(ToStream(stream), ToEvent(event_), 0), "cudaStreamWaitEvent");
}

absl::StatusOr<bool> Event::Done() const {
  const cudaError_t error = cudaEventQuery(ToEvent(event_));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  NSA_RETURN_IF_ERROR(ToStatus(error, "cudaEventQuery"));
  return true;
}

absl::Status CopyBytes(void* stream, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return ToStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, ToStream(stream)),
      "cudaMemcpyAsync");
}

absl::Status ZeroBytes(void* stream, void* to, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return ToStatus(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), ToStream(stream)),
                  "cudaMemsetAsync");
}

absl::StatusOr<Graph> Graph::Capture(void* stream, absl::FunctionRef<absl::Status()> enqueue) {
  NSA_RETURN_IF_ERROR(
      ToStatus(cudaStreamBeginCapture(ToStream(stream), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture"));
  const absl::Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(ToStream(stream), &graph);
  if (!enqueued.ok() || ended != cudaSuccess) {
    cudaGetLastError();
    if (graph != nullptr) cudaGraphDestroy(graph);
    return enqueued.ok() ? ToStatus(ended, "cudaStreamEndCapture") : enqueued;
  }
  size_t nodes = 0;
  cudaGraphExec_t executable = nullptr;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  NSA_RETURN_IF_ERROR(ToStatus(error, "cudaGraphInstantiate"));
  Graph made;
  made.executable_ = executable;
  made.nodes_ = static_cast<int64_t>(nodes);
  return made;
}

Graph::~Graph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

absl::Status Graph::Launch(void* stream) const {
  return ToStatus(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), ToStream(stream)),
                  "cudaGraphLaunch");
}

Range::Range(const char* name) { nvtxRangePushA(name); }
Range::~Range() { nvtxRangePop(); }

}  // namespace nsa::cuda
