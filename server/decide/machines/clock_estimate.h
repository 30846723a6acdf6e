// How far the clock of a machine is ahead of another clock, from the heartbeats that it sends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace nsa::server {

// Keeps the last heartbeats. A heartbeat arrives some time after it was sent, so that its machine
// seems to be behind by that time. The one that was the fastest of the last kKept says most, and
// slow ones do not count. A clock that is put back is therefore known after kKept heartbeats, one
// that is put forward at once.
//
// Times of arrival are those of the coordinator's monotonic clock: a step of its wall clock changes
// nothing.
class ClockEstimate {
 public:
  static constexpr size_t kKept = 16;

  // `sent_unix_nanos` by the machine's clock; 0 or less (an older agent) is ignored. `arrived`:
  // monotonic.
  void Add(int64_t sent_unix_nanos, absl::Duration arrived);

  // The machine's time, since the epoch, when the monotonic clock shows 0. The difference of two
  // machines is the difference of their clocks. Nothing if no heartbeat had the time.
  std::optional<absl::Duration> AtZero() const;

 private:
  std::array<absl::Duration, kKept> at_zero_;
  size_t count_ = 0;  // of all that were added
};

}  // namespace nsa::server
