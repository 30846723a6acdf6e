// The arena of activations. All tensors are planned first; then memory is allocated once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/arena_plan.h"
#include "common/base/status.h"
#include "kernels/tensor.h"
#include "worker/train/model/memory.h"

namespace nsa {

class ActivationArena {
 public:
  // A planned tensor. Valid only for the arena that planned it.
  struct Slot {
    int64_t offset = 0;  // bytes
    int64_t size = 0;    // elements
    DType dtype = DType::kF32;
  };

  // Plans a tensor. To be called before Allocate().
  Slot Plan(int64_t size, DType dtype = DType::kF32) {
    return {plan_.Take(size * SizeOf(dtype)), size, dtype};
  }

  // Allocates the memory on the device of `backend`, filled with zeros.
  absl::Status Allocate(Backend backend) {
    NSA_ASSIGN_OR_RETURN(memory_, Memory::Allocate(backend, plan_.used(), "activations"));
    return absl::OkStatus();
  }

  Tensor operator[](const Slot& slot) const {
    return slot.size == 0 ? Tensor(nullptr, 0, slot.dtype)
                          : Tensor(memory_.data() + slot.offset, slot.size, slot.dtype);
  }

  int64_t bytes() const { return plan_.used(); }

 private:
  ArenaPlan plan_{64};
  Memory memory_;
};

}  // namespace nsa
