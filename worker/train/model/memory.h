// A block of memory on the device that a job trains on: host memory or GPU memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"

namespace nsa::train {

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

  // One allocation on the device of `backend`. ResourceExhausted, naming `what`, when the GPU has
  // too little free memory.
  static absl::StatusOr<Memory> Allocate(Backend backend, int64_t bytes, const std::string& what);

  // A device address; on a GPU the host must not read it.
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool on_host() const { return host_ != nullptr || bytes_ == 0; }

 private:
  std::unique_ptr<std::byte[]> host_;
  cuda::DeviceMemory device_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace nsa::train
