#include "worker/train/model/finite.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace nsa::train {

namespace {

// No training leads to a weight above this; products of larger ones are not finite.
constexpr float kLargestWeight = 1e15f;

bool IsUsable(float weight) { return std::abs(weight) <= kLargestWeight; }  // false for NaN

}  // namespace

absl::Status CheckFinite(const ParameterLayout& layout, std::span<const float> values) {
  int64_t bad = 0;
  std::string first;
  for (const ParameterInfo& tensor : layout.tensors()) {
    const auto of_tensor =
        values.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.size));
    const auto here = std::ranges::count_if(of_tensor, [](float w) { return !IsUsable(w); });
    if (here > 0 && bad == 0) first = tensor.name;
    bad += here;
  }
  if (bad == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d of %d weights are not finite, or above %g, the first in %s; the run diverged before "
      "this checkpoint: take an earlier one",
      bad, layout.count(), kLargestWeight, first));
}

}  // namespace nsa::train
