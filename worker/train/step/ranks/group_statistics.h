// The statistics of a step's layers over all heads, where the ranks of a context group have some
// each.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/comm/comm.h"

namespace nsa::train {

// Combines the records of this rank's group of `context` ranks, which have equal numbers of heads
// over the same tokens: counts are added up, means and shares are averaged, the smallest and the
// largest value remain so. selected_mass_p10 and the choice's entropy_ratio, which no averages can
// give, are the means of the ranks'. Collective, but does nothing for 1. All ranks have the same
// layers with the same parts. Errors of the communication.
absl::Status ShareLayers(Comm* comm, int32_t context, v1::StepRecord* record);

}  // namespace nsa::train
