#include "common/base/clock.h"

#include <ctime>

namespace nsa {

absl::Duration RealClock::Monotonic() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace nsa
