// Waiting for what others bring about.
#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace nsa {

// Whether `holds` became true before `patience` ran out.
inline bool Within(absl::Duration patience, const std::function<bool()>& holds) {
  const absl::Time give_up = absl::Now() + patience;
  while (!holds()) {
    if (absl::Now() > give_up) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

}  // namespace nsa
