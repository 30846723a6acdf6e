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

absl::Status CheckFinite(const Arena& parameters) {
  const ParameterLayout& layout = parameters.layout();
  int64_t bad = 0;
  std::string first;
  for (const ParameterInfo& tensor : layout.tensors()) {
    const Slice part = parameters.slice().Common({tensor.offset, tensor.offset + tensor.size});
    if (part.empty()) continue;
    const auto here =
        std::ranges::count_if(parameters.of(part), [](float w) { return !IsUsable(w); });
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
