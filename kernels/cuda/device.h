// The GPU as a program sees it: its memory, streams, copies, graphs. No CUDA header is needed to
// use it. Implemented by device.cc; in a build without CUDA by no_device.cc, where there is no GPU
// and everything answers Unimplemented.
//
// Errors of asynchronous work are reported by the first call that meets them. After any other error
// than ResourceExhausted the process's CUDA context is lost and the process must end.
// One device a process: the first that CUDA_VISIBLE_DEVICES shows.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa::cuda {

// Whether this program has the CUDA half.
bool BuiltWithCuda();

// GPUs that this process may use; 0 without a driver.
int DeviceCount();

struct DeviceInfo {
  std::string name;  // "NVIDIA H200"
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;          // now
  int32_t compute_capability = 0;  // 90
  int32_t multiprocessors = 0;
  int32_t driver_version = 0;   // what the driver supports: 13000 for CUDA 13.0
  int32_t runtime_version = 0;  // what this program was built with
};

// Starts CUDA in this process. FailedPrecondition, with what to do, when it cannot be used.
absl::StatusOr<DeviceInfo> ReadDevice();

// For what the kernels were compiled that this GPU takes from the program: 90 for sm_90a, 80 for
// sm_80, whose PTX the driver translates at the first start on a GPU of another generation.
absl::StatusOr<int32_t> KernelArchitecture();

// The most shared memory that a block may have: the GPU's limit, and for code of sm_80 no more than
// an A100's, so that tests of that code on a newer GPU say what an A100 would.
absl::StatusOr<int32_t> SharedBytesPerBlock();

// Bytes of device memory that nobody uses, on the whole GPU.
absl::StatusOr<int64_t> FreeBytes();

// Device memory; one cudaMalloc. Freed when destroyed.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Zeroed when it returns. ResourceExhausted when the GPU has not so much: `what` names the use.
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

// Page-locked host memory: copies from and to it do not block, and kernels may write to it at the
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

// An ordered queue of work. get() is what Exec::stream wants.
class Stream {
 public:
  Stream() = default;
  // Of several streams whose kernels have blocks to run, that of the highest priority comes first:
  // 0 is the lowest and the default; 5 the highest that is told apart.
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

// Waits for everything enqueued on `stream` (null: CUDA's default stream, which the others neither
// wait for nor hold up), or asks whether it is done.
absl::Status Synchronize(void* stream);
absl::StatusOr<bool> Done(void* stream);

// A point in a stream's order. Without timing.
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
  // Later work of `stream` waits for what came before Record().
  absl::Status Wait(void* stream) const;
  absl::StatusOr<bool> Done() const;

 private:
  void* event_ = nullptr;
};

// to ← from, in stream order, host or device either side. Host memory that is not pinned makes the
// call wait.
absl::Status CopyBytes(void* stream, void* to, const void* from, int64_t bytes);
absl::Status ZeroBytes(void* stream, void* to, int64_t bytes);

// What `enqueue` puts on `stream`, to be launched any number of times. The arguments that the
// launches were made with are part of it. Nothing runs while it is captured.
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

// A named range in a profiler's timeline (NVTX); free when nobody profiles. Ends with its scope.
class Range {
 public:
  explicit Range(const char* name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace nsa::cuda
