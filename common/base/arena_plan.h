// Offsets of consecutive, aligned parts within one block of memory.
#pragma once

#include <cstdint>

namespace nsa {

class ArenaPlan {
 public:
  // Every part begins at a multiple of `alignment` bytes.
  explicit ArenaPlan(int64_t alignment) : alignment_(alignment) {}

  // Adds a part of `bytes` (at least 0) and returns its offset in bytes.
  int64_t Take(int64_t bytes) {
    const int64_t begin = used_;
    used_ += (bytes + alignment_ - 1) / alignment_ * alignment_;
    return begin;
  }

  // Bytes of all parts so far, including the padding after the last one.
  int64_t used() const { return used_; }

 private:
  int64_t alignment_;
  int64_t used_ = 0;
};

}  // namespace nsa
