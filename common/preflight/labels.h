// The limits of a job's labels, in a job file and in a change of them.
#pragma once

#include <cstddef>
#include <string_view>

namespace nsa {

inline constexpr int kMostLabels = 64;
inline constexpr size_t kLongestLabelKey = 63;     // bytes, from 1
inline constexpr size_t kLongestLabelValue = 256;  // bytes, from 0

inline bool IsLabel(std::string_view key, std::string_view value) {
  return !key.empty() && key.size() <= kLongestLabelKey && value.size() <= kLongestLabelValue;
}

}  // namespace nsa
