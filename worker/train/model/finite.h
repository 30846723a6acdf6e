// Weights that are not numbers, or so large that their products are none: with them every token has
// the same probability, or none.
#pragma once

#include "absl/status/status.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

// FailedPrecondition if one of the elements that `parameters` has, in host memory, is NaN, infinite
// or larger than any training makes it: how many are, and the first tensor that has one.
absl::Status CheckFinite(const Arena& parameters);

}  // namespace nsa::train
