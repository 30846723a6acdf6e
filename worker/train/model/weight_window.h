// Where a rank has the weights that it computes with, with runtime.shard: parameters (ZeRO-3:
// Rajbhandari et al. 2020, arXiv 1910.02054). Each rank keeps the weights of its share (shares.h).
// Before the model reads a part of itself (Model::BeforePart), the ranks bring the weights of that
// part together in a window of memory, from which they are overwritten by those of a later part.
//
// On a GPU the window has memory for any two parts that follow each other, in bf16: while one is
// computed with, the next is gathered. On the CPU, where nothing happens at the same time, it has
// memory for one, in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"
#include "worker/train/model/gradient_window.h"
#include "worker/train/model/model.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/slice.h"

namespace nsa::train {

// One thread at a time.
class WeightWindow {
 public:
  // Memory on the device of `backend`, for a model with `layout` and so many layers. It has a head
  // with weights of its own: GradientWindow::Create() refuses others. ResourceExhausted when the
  // device has too little memory.
  static absl::StatusOr<WeightWindow> Create(const ParameterLayout* layout, int32_t layers,
                                             Backend backend);

  // The part with the final norm and the head: the number of layers.
  int32_t last() const { return static_cast<int32_t>(parts_.size()) - 2; }
  // The elements of a part: −1 is the embedding, then the blocks.
  const Slice& part(int32_t part) const { return parts_[IndexOf(part)]; }
  // Which half of the window a part is in: parts that follow each other are in different ones.
  int32_t turn(int32_t part) const { return static_cast<int32_t>(IndexOf(part) % 2); }

  // From now on arena() has the elements of `part`; their values are what was there before.
  void MoveTo(int32_t part) { arena_.MoveTo(this->part(part), plan_.at[IndexOf(part)]); }

  // After MoveTo(part): the rows behind the head that a product reads as zeros, on a GPU, where
  // other parts overwrite them; empty for other parts.
  Tensor tail(int32_t part) const;

  // What the model reads. Its address changes when the window is moved from.
  Arena* arena() { return &arena_; }

  int64_t bytes() const { return arena_.bytes(); }

 private:
  WeightWindow(std::vector<Slice> parts, WindowPlan plan, Arena arena)
      : parts_(std::move(parts)), plan_(std::move(plan)), arena_(std::move(arena)) {}
  size_t IndexOf(int32_t part) const { return static_cast<size_t>(last() - part); }

  std::vector<Slice> parts_;  // from the last to the first
  WindowPlan plan_;
  Arena arena_;
};

// Which parts are gathered, in this order, when the model is about to read `part` for `pass`.
// `last`: WeightWindow::last(). With `ahead`, in a window for two parts, the part behind it is
// gathered while `part` is computed with; the last two parts of forward, the first that backward
// reads, are still there then, otherwise the last. A function of these alone, so all ranks gather
// in one order. Pure.
std::vector<int32_t> GathersBefore(int32_t part, Model::Pass pass, int32_t last, bool ahead);

}  // namespace nsa::train
