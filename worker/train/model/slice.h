// A run of elements of the flat arena.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nsa::train {

// Elements [begin, end).
struct Slice {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const Slice&) const = default;

  // The elements that are in both; empty where there are none.
  Slice Common(const Slice& other) const {
    const Slice common = {std::max(begin, other.begin), std::min(end, other.end)};
    return common.empty() ? Slice{} : common;
  }
};

}  // namespace nsa::train
