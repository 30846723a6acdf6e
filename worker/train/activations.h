// The arena of activations: tensors are planned first, then the memory is taken once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/status.h"
#include "kernels/tensor.h"
#include "worker/train/memory.h"

namespace nsa {

class ActivationArena {
 public:
  // A planned tensor; valid in the arena that planned it.
  struct Slot {
    int64_t offset = 0;  // bytes
    int64_t size = 0;    // elements
    DType dtype = DType::kF32;
  };

  // Plans a tensor, aligned to 64 bytes. Before Allocate().
  Slot Plan(int64_t size, DType dtype = DType::kF32) {
    const Slot slot{bytes_, size, dtype};
    bytes_ += (size * SizeOf(dtype) + 63) / 64 * 64;
    return slot;
  }

  // Takes the memory on the device of `backend`, zeroed.
  absl::Status Allocate(Backend backend) {
    NSA_ASSIGN_OR_RETURN(memory_, Memory::Allocate(backend, bytes_, "activations"));
    return absl::OkStatus();
  }

  Tensor operator[](const Slot& slot) const {
    return slot.size == 0 ? Tensor(nullptr, 0, slot.dtype)
                          : Tensor(memory_.data() + slot.offset, slot.size, slot.dtype);
  }

  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
  Memory memory_;
};

}  // namespace nsa
