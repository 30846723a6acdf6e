// The limits of a job's labels, in a job file and in a change of them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"

namespace nsa {

inline constexpr int kMostLabels = 64;
inline constexpr size_t kLongestLabelKey = 63;     // bytes, from 1
inline constexpr size_t kLongestLabelValue = 256;  // bytes, from 0

// Whether a job of a sweep has this label from it: `sweep`, by which its jobs are found, and those
// that are named as keys of the job file, which its table shows.
inline bool IsLabelOfSweep(std::string_view key) {
  return key == "sweep" || key.find('.') != std::string_view::npos;
}

// What is wrong with a label, and what to do; empty if it is good. Characters that CleanText()
// replaces could make it look like another.
inline std::string LabelFault(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kLongestLabelKey || value.size() > kLongestLabelValue) {
    return absl::StrFormat("%d and %d characters (key 1 to %d, value at most %d); shorten it",
                           key.size(), value.size(), kLongestLabelKey, kLongestLabelValue);
  }
  if (CleanText(key) == key && CleanText(value) == value) return "";
  return "has control characters, or marks that turn the direction of writing (not allowed); "
         "remove them";
}

}  // namespace nsa
