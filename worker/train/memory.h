// A block of bytes where a job trains: in host memory or on the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"

namespace nsa {

// Aligned to 64 bytes, zeroed.
class Memory {
 public:
  Memory() = default;

  // Host memory.
  explicit Memory(int64_t bytes)
      : host_(std::make_unique<std::byte[]>(static_cast<size_t>(bytes) + 64)), bytes_(bytes) {
    const auto address = reinterpret_cast<uintptr_t>(host_.get());
    data_ = host_.get() + (64 - address % 64) % 64;
  }

  // On the device of `backend`, one allocation. ResourceExhausted, naming `what`, when the GPU has
  // not so much.
  static absl::StatusOr<Memory> Allocate(Backend backend, int64_t bytes, const std::string& what);

  // Of the device: not to be read by the host when that is a GPU.
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool on_host() const { return host_ != nullptr || bytes_ == 0; }

 private:
  std::unique_ptr<std::byte[]> host_;
  cuda::DeviceMemory device_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace nsa
