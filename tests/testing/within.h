// Waits for a condition that other threads or processes make true.
#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace nsa {

// Returns whether `holds` became true within `patience`.
inline bool Within(absl::Duration patience, const std::function<bool()>& holds) {
  const absl::Time give_up = absl::Now() + patience;
  while (!holds()) {
    if (absl::Now() > give_up) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

}  // namespace nsa
