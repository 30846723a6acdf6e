// Time as a dependency, so that tests own it. Deadlines use Monotonic(), records use Wall().
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace nsa {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Wall clock; may jump.
  virtual absl::Time Wall() const = 0;

  // Time since an arbitrary moment; never goes back.
  virtual absl::Duration Monotonic() const = 0;
};

// The machine's clocks.
class RealClock final : public Clock {
 public:
  absl::Time Wall() const override { return absl::Now(); }
  absl::Duration Monotonic() const override;
};

}  // namespace nsa
