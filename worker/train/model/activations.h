// The arena of activations. All tensors are planned first; then memory is allocated once.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/arena_plan.h"
#include "common/base/status.h"
#include "kernels/tensor.h"
#include "worker/train/model/memory.h"

namespace nsa::train {

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

  // Plans `count` alternatives in the same memory, used one at a time: `plan(i)` plans
  // the tensors of the i-th. The memory has the size of the largest. To be called before
  // Allocate().
  template <class PlanOne>
  void PlanAlternatives(int32_t count, PlanOne plan) {
    const ArenaPlan begin = plan_;
    ArenaPlan largest = plan_;
    for (int32_t i = 0; i < count; ++i) {
      plan_ = begin;
      plan(i);
      if (plan_.used() > largest.used()) largest = plan_;
    }
    plan_ = largest;
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

}  // namespace nsa::train
