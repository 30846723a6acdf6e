// Waits for a condition that other threads or processes make true.
#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace nsa {

// Returns whether `holds` became true within `patience`.
inline bool Within(absl::Duration patience, const std::function<bool()>& holds) {
  const absl::Duration give_up = RealClock().Monotonic() + patience;
  while (!holds()) {
    if (RealClock().Monotonic() > give_up) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

}  // namespace nsa
