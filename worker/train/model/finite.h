// Weights that are not numbers: with them every token has the same probability, or none.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

// FailedPrecondition if one of the parameters in `values`, laid out by `layout`, is NaN or
// infinite: how many are, and the first tensor that has one.
absl::Status CheckFinite(const ParameterLayout& layout, std::span<const float> values);

}  // namespace nsa::train
