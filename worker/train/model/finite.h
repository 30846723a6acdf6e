// Weights that are not numbers, or so large that their products are none: with them every token has
// the same probability, or none.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

// FailedPrecondition if one of the parameters in `values`, laid out by `layout`, is NaN,
// infinite or larger than any training makes it: how many are, and the first tensor that has one.
absl::Status CheckFinite(const ParameterLayout& layout, std::span<const float> values);

}  // namespace nsa::train
