#include "worker/train/model/memory.h"

#include "common/base/status.h"

namespace nsa::train {

absl::StatusOr<Memory> Memory::Allocate(Backend backend, int64_t bytes, const std::string& what) {
  if (backend == Backend::kCpu) return Memory(bytes);
  Memory memory;
  NSA_ASSIGN_OR_RETURN(memory.device_, cuda::DeviceMemory::Allocate(bytes, what));
  memory.data_ = static_cast<std::byte*>(memory.device_.data());
  memory.bytes_ = bytes;
  return memory;
}

}  // namespace nsa::train
