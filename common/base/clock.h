// A clock that tests can replace. Use Monotonic() for deadlines and Wall() for timestamps.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace nsa {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // The wall clock; it may jump.
  virtual absl::Time Wall() const = 0;

  // Time since an arbitrary moment; it never goes backwards.
  virtual absl::Duration Monotonic() const = 0;
};

// The machine's clocks.
class RealClock final : public Clock {
 public:
  absl::Time Wall() const override { return absl::Now(); }
  absl::Duration Monotonic() const override;
};

}  // namespace nsa
