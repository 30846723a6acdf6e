// The newest rows of a growing list, in consecutive memory: keys or values, one row for each token
// or compression block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/tensor.h"
#include "worker/train/model/activations.h"

namespace nsa::train {

class RowCache {
 public:
  RowCache() = default;

  // Plans memory for `capacity` rows of `width` floats. When they are full, all but the newest
  // `keep` rows are forgotten, so that keep + n ≤ capacity rows can be appended n at a time.
  RowCache(int64_t capacity, int64_t keep, int64_t width, ActivationArena* arena)
      : capacity_(std::max<int64_t>(1, capacity)),
        keep_(keep),
        width_(width),
        slot_(arena->Plan(capacity_ * width)) {}

  // To be called once `arena` is allocated.
  void Bind(const ActivationArena& arena) { data_ = arena[slot_].as<float>().data(); }

  // Appends `rows` rows and returns where the caller writes them.
  float* Append(int64_t rows) {
    if (end_ - begin_ + rows > capacity_) Slide();
    float* const at = data_ + (end_ - begin_) * width_;
    end_ += rows;
    return at;
  }

  void Clear() { begin_ = end_ = 0; }

  // Number of the first row that is kept, and of the next one to come.
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

  // Row `number` and, behind it, all rows after it; begin() ≤ number ≤ end().
  const float* row(int64_t number) const { return data_ + (number - begin_) * width_; }

  // Rows first … end() − 1.
  ConstTensor from(int64_t first) const {
    return {row(first), (end_ - first) * width_, DType::kF32};
  }

 private:
  void Slide() {
    const int64_t first = std::max(begin_, end_ - keep_);
    std::copy(row(first), row(end_), data_);
    begin_ = first;
  }

  int64_t capacity_ = 0, keep_ = 0, width_ = 0;
  ActivationArena::Slot slot_;
  float* data_ = nullptr;
  int64_t begin_ = 0, end_ = 0;
};

}  // namespace nsa::train
