// Where the parts of one block of memory begin: each part after the one before, aligned.
#pragma once

#include <cstdint>

namespace nsa {

class ArenaPlan {
 public:
  // `alignment` of every part's offset, in bytes.
  explicit ArenaPlan(int64_t alignment) : alignment_(alignment) {}

  // The offset of a part of `bytes`, 0 or more.
  int64_t Take(int64_t bytes) {
    const int64_t begin = used_;
    used_ += (bytes + alignment_ - 1) / alignment_ * alignment_;
    return begin;
  }

  // Bytes of all parts so far, the last one's padding included.
  int64_t used() const { return used_; }

 private:
  int64_t alignment_;
  int64_t used_ = 0;
};

}  // namespace nsa
