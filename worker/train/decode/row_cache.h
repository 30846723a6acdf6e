// The newest rows of a growing list, in consecutive memory: keys or values, one row for each token
// or compression block. On a GPU all work is enqueued on Exec::stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"
#include "worker/train/model/activations.h"

namespace nsa::train {

class RowCache {
 public:
  struct Size {
    int64_t capacity = 0;  // rows
    int64_t keep = 0;      // rows that are kept when they are full
    int64_t width = 0;     // elements of a row
    DType dtype = DType::kF32;
  };

  RowCache() = default;

  // Plans memory. When it is full, all but the newest `keep` rows are forgotten, so that keep + n ≤
  // capacity rows can be appended n at a time. On a GPU 2·keep + n ≤ capacity, unless no row is
  // ever forgotten: the rows that are kept must not overlap the place that they are moved to.
  RowCache(const Size& size, ActivationArena* arena)
      : size_(size),
        slot_(arena->Plan(std::max<int64_t>(1, size.capacity) * size.width, size.dtype)) {
    size_.capacity = std::max<int64_t>(1, size.capacity);
  }

  // To be called once `arena` is allocated.
  void Bind(const ActivationArena& arena) { memory_ = arena[slot_]; }

  // Appends `rows` rows and returns where the caller writes them. The error is that of a copy.
  absl::StatusOr<Tensor> Append(const Exec& exec, int64_t rows) {
    if (end_ - begin_ + rows > size_.capacity) NSA_RETURN_IF_ERROR(Slide(exec));
    const Tensor at(At(end_), rows * size_.width, size_.dtype);
    end_ += rows;
    return at;
  }

  void Clear() { begin_ = end_ = 0; }

  // Whether it has memory: a default-constructed one has none.
  bool wanted() const { return memory_.wanted(); }

  // Number of the first row that is kept, and of the next one to come.
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

  // `count` rows from row `first` on; begin() ≤ first ≤ first + count ≤ end().
  ConstTensor rows(int64_t first, int64_t count) const {
    return {At(first), count * size_.width, size_.dtype};
  }
  // As many rows of memory, from that of row begin() on.
  Tensor memory(int64_t count) const { return {memory_.data, count * size_.width, size_.dtype}; }
  // Rows first … end() − 1.
  ConstTensor from(int64_t first) const { return rows(first, end_ - first); }

 private:
  int64_t Bytes(int64_t rows) const { return rows * size_.width * SizeOf(size_.dtype); }
  std::byte* At(int64_t number) const {
    return static_cast<std::byte*>(memory_.data) + Bytes(number - begin_);
  }

  absl::Status Slide(const Exec& exec) {
    const int64_t first = std::max(begin_, end_ - size_.keep), bytes = Bytes(end_ - first);
    const std::byte* const from = At(first);
    begin_ = first;
    if (exec.backend == Backend::kCuda) {
      return cuda::CopyBytes(exec.stream, memory_.data, from, bytes);
    }
    std::memmove(memory_.data, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  Size size_;
  ActivationArena::Slot slot_;
  Tensor memory_;
  int64_t begin_ = 0, end_ = 0;
};

}  // namespace nsa::train
