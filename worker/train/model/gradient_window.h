// Where gradients are until their owners have their sums, with runtime.shard: gradients (ZeRO-2:
// Rajbhandari et al. 2020, arXiv 1910.02054). Backward makes the gradients of one part of the model
// after the other. As soon as those of a part are complete, they are summed over the ranks, each
// rank takes those of its share (shares.h), and their memory is free for a later part. So a rank
// keeps the gradients of its share, and has memory for those on their way.
//
// On a GPU that is memory for any two parts that follow each other: while one is summed, backward
// makes the next. They are in turn at the begin and at the end of the memory. On the CPU, where
// nothing happens at the same time, it is memory for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/slice.h"

namespace nsa::train {

class Model;

// The parts that begin there, from the last, which reaches to `end`, to the first. Pure.
std::vector<Slice> PartsBetween(std::span<const int64_t> begins, int64_t end);

// The parts of a model in the order in which backward completes their gradients, which begin at
// Model::PartBegins(). They are all elements of the layout, from its end to its begin. Pure.
std::vector<Slice> PartsOf(const Model& model, const ParameterLayout& layout);

// Where each part begins in the memory of a window, in floats, and how many floats that has.
struct WindowPlan {
  std::vector<int64_t> at;
  int64_t room = 0;

  // `tail`: elements behind the first part. `two`: parts that follow each other do not overlap;
  // otherwise all begin at 0. Begins are multiples of 16 floats, as in an arena of all elements.
  // Pure.
  static WindowPlan Of(std::span<const Slice> parts, int64_t tail, bool two);
};

// One thread at a time.
class GradientWindow {
 public:
  // Memory on the device of `backend`, for a model with `parts`; zeros. InvalidArgument where the
  // gradients of lm_head.weight are not in the first part, as in a model whose head is its
  // embedding. ResourceExhausted when the device has too little memory.
  static absl::StatusOr<GradientWindow> Create(const ParameterLayout* layout,
                                               std::vector<Slice> parts, Backend backend);

  std::span<const Slice> parts() const { return parts_; }

  // From now on arena() has the elements of parts()[index]; their values are what was there before.
  void MoveTo(size_t index) { arena_.MoveTo(parts_[index], plan_.at[index]); }

  // What Model::Backward() adds to. Its address changes when the window is moved from.
  Arena* arena() { return &arena_; }

  int64_t bytes() const { return arena_.bytes(); }

 private:
  GradientWindow(std::vector<Slice> parts, WindowPlan plan, Arena arena)
      : parts_(std::move(parts)), plan_(std::move(plan)), arena_(std::move(arena)) {}

  std::vector<Slice> parts_;
  WindowPlan plan_;
  Arena arena_;
};

}  // namespace nsa::train
