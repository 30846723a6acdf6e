// Conditions on what training measures, as a job file writes them (AlertSpec.when): "val_loss > 3
// for 10m", "skipped_nonfinite == 1 for 5 steps". Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/record/quantities.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::record {

inline constexpr int kMostAlerts = 8;         // of one job
inline constexpr int kMostAlertNotices = 8;   // of one alert
inline constexpr size_t kLongestAlert = 200;  // bytes of the text

struct AlertRule {
  enum class Operator : uint8_t { kAbove, kAtLeast, kBelow, kAtMost, kIs, kIsNot };

  const Quantity* quantity = nullptr;  // a row of kQuantities that has numbers
  Operator compares = Operator::kAbove;
  double limit = 0;  // finite
  // For how long it has to hold: a time, a number of steps, or (both 0) no longer than one value.
  double for_seconds = 0;
  int64_t for_steps = 0;

  // NaN is greater than every number, so that a limit on a loss is also one on a loss that is lost.
  bool Holds(double value) const;
};

// InvalidArgument `value (limit); what to do`.
absl::StatusOr<AlertRule> ParseAlert(std::string_view when);

// The value that a record, and the GPUs as they were then, have of a quantity; nothing if they have
// none. Several layers or GPUs count as one, by Quantity::keep.
Value Measured(const Quantity& quantity, const v1::WorkerRecord& record,
               std::span<const v1::GpuInfo> gpus);

}  // namespace nsa::record
