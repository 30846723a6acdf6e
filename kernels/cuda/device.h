// The GPU: device memory, streams, copies, graphs. Using this header needs no CUDA header.
// Implemented by device.cc; in a build without CUDA by no_device.cc, where DeviceCount() is 0 and
// every operation returns Unimplemented.
//
// Errors of asynchronous work are reported by the first call that sees them. After any error other
// than ResourceExhausted the process's CUDA context is lost and the process must end.
// One device per process: the first in CUDA_VISIBLE_DEVICES.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa::cuda {

// Whether this program was built with CUDA.
bool BuiltWithCuda();

// Number of GPUs that this process may use; 0 without a driver.
int DeviceCount();

struct DeviceInfo {
  std::string name;  // "NVIDIA H200"
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;          // now
  int32_t compute_capability = 0;  // 90
  int32_t multiprocessors = 0;
  int32_t driver_version = 0;   // the CUDA version that the driver supports: 13000 for 13.0
  int32_t runtime_version = 0;  // the CUDA version that this program was built with
};

// Initialises CUDA in this process. FailedPrecondition, with a remedy, when it cannot be used.
absl::StatusOr<DeviceInfo> ReadDevice();

// The architecture of the kernel code that runs on this GPU: 90 for sm_90a, 80 for sm_80. On a GPU
// of another generation the driver compiles the PTX of sm_80 at the first start.
absl::StatusOr<int32_t> KernelArchitecture();

// Whether a kernel may begin while the kernel in front of it on its stream still runs, and whether
// it lets the next one do so (kernels/cuda/begin.cuh). Both need sm_90 code, which waits for the
// kernel in front: sm_80 code on a newer GPU does not. `next_may_start`: what the launch says.
struct Overlap {
  bool with_previous = false;
  bool with_next = false;
};
Overlap OverlapOf(bool next_may_start);

// The most shared memory that a block may use, in bytes: the GPU's limit. For sm_80 code it is at
// most the limit of an A100, so that tests of that code on a newer GPU behave as on an A100.
absl::StatusOr<int32_t> SharedBytesPerBlock();

// For measurements on a newer GPU. From now on no more thread blocks of a kernel share a
// multiprocessor than the shared memory of an A100's would hold; kernels are launched with more of
// it than they use. To be called before the first launch.
void ImitateOccupancyOfA100();

// For tests on a GPU that has more. From now on SharedBytesPerBlock() is at most 99 KiB, as on an
// RTX 4090 or an L40S.
void ImitateLeastSharedMemory();

// The dynamic shared memory with which to launch `kernel`, which uses `shared` bytes and may use
// that much: `shared`, or more after ImitateOccupancyOfA100().
absl::StatusOr<int32_t> SharedToLaunchWith(const void* kernel, int32_t threads, int32_t shared);

// Bytes of free device memory, on the whole GPU.
absl::StatusOr<int64_t> FreeBytes();

// Device memory; one cudaMalloc. Freed when destroyed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // The memory is zeroed on return. ResourceExhausted when the GPU has less free memory; `what`
  // names the use in the message.
  static absl::StatusOr<DeviceMemory> Allocate(int64_t bytes, const std::string& what);
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceMemory();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(DeviceMemory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Page-locked host memory: copies from and to it do not block, and kernels can access it at the
// same address.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  // Zeroed.
  static absl::StatusOr<PinnedMemory> Allocate(int64_t bytes, const std::string& what);
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PinnedMemory();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(PinnedMemory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// An ordered queue of work. get() is the value for Exec::stream.
class Stream {
 public:
  Stream() = default;
  // When several streams have blocks ready to run, the stream with the highest priority goes first.
  // 0 is the lowest and the default; 5 is the highest that CUDA distinguishes.
  static absl::StatusOr<Stream> Create(int32_t priority = 0);
  Stream(Stream&& other) noexcept { std::swap(stream_, other.stream_); }
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();

  void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
};

// Synchronize() waits for everything enqueued on `stream`; Done() asks whether it has finished.
// Null is CUDA's default stream; other streams and the default stream do not wait for each other.
absl::Status Synchronize(void* stream);
absl::StatusOr<bool> Done(void* stream);

// A point in the order of a stream. Does not record times.
class Event {
 public:
  Event() = default;
  static absl::StatusOr<Event> Create();
  Event(Event&& other) noexcept { std::swap(event_, other.event_); }
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();

  absl::Status Record(void* stream);
  // Work enqueued on `stream` from now on waits for the work that was enqueued before Record().
  absl::Status Wait(void* stream) const;
  absl::StatusOr<bool> Done() const;

 private:
  void* event_ = nullptr;
};

// to ← from, in stream order. Either side may be host or device memory. The call blocks when host
// memory is not pinned.
absl::Status CopyBytes(void* stream, void* to, const void* from, int64_t bytes);
absl::Status ZeroBytes(void* stream, void* to, int64_t bytes);

// A CUDA graph: the work that `enqueue` puts on `stream`, captured so that it can be launched any
// number of times. The arguments of the launches are captured too. Nothing runs during the capture.
class Graph {
 public:
  Graph() = default;
  static absl::StatusOr<Graph> Capture(void* stream, absl::FunctionRef<absl::Status()> enqueue);
  Graph(Graph&& other) noexcept { swap(other); }
  Graph& operator=(Graph&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Graph();

  absl::Status Launch(void* stream) const;
  bool ready() const { return executable_ != nullptr; }
  int64_t nodes() const { return nodes_; }

 private:
  void swap(Graph& other) {
    std::swap(executable_, other.executable_);
    std::swap(nodes_, other.nodes_);
  }
  void* executable_ = nullptr;
  int64_t nodes_ = 0;
};

// A named range in a profiler's timeline (NVTX) until the scope ends. Free without a profiler.
class Range {
 public:
  explicit Range(const char* name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace nsa::cuda
