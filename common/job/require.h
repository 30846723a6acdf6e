// What a job may require of machines (resources.require), and what a machine may say of itself
// (labels in agent.yaml).
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/job/labels.h"

namespace nsa {

inline constexpr int kMostRequired = 32;  // keys of a job, and labels of a machine

// Keys that every machine has by itself; any other is a label.
inline constexpr std::string_view kRequiredGpu = "gpu";               // words of the model
inline constexpr std::string_view kRequiredGpuMemory = "gpu_memory";  // GiB of each GPU
inline constexpr std::string_view kRequiredMemory = "memory";         // GiB of the machine

inline bool IsOfMachine(std::string_view key) {
  return key == kRequiredGpu || key == kRequiredGpuMemory || key == kRequiredMemory;
}

// The GiB that a requirement asks for; NaN if it is no number above 0.
inline double RequiredGib(const std::string& value) {
  double gib = 0;
  if (absl::SimpleAtod(value, &gib) && gib > 0 && std::isfinite(gib)) return gib;
  return std::numeric_limits<double>::quiet_NaN();
}

// What is wrong with a requirement, and what to do; empty if it is good.
inline std::string RequirementFault(const std::string& key, const std::string& value) {
  if (std::string fault = LabelFault(key, value); !fault.empty()) return fault;
  if (key == kRequiredGpu && value.empty()) return "empty (a word of the model); name one";
  if (key != kRequiredGpuMemory && key != kRequiredMemory) return "";
  if (!std::isnan(RequiredGib(value))) return "";
  return absl::StrCat("'", value, "' (GiB, a number above 0); correct it");
}

}  // namespace nsa
