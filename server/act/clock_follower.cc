#include "server/act/clock_follower.h"

#include <utility>

#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// A look that took longer says nothing: the process may have stood still between two readings.
constexpr absl::Duration kLongestLook = absl::Milliseconds(100);
// Below this the stored clock need not be asked.
constexpr absl::Duration kNothing = absl::Milliseconds(500);

}  // namespace

void ClockFollower::Look() {
  const absl::Duration before = clock_.Monotonic();
  const absl::Time wall = clock_.Wall();
  if (clock_.Monotonic() - before > kLongestLook) return;
  const absl::Duration gap = before - std::exchange(looked_, before);
  const absl::Time zero = wall - before;
  if (zero_ != absl::InfinitePast() && absl::AbsDuration(zero - zero_) < kNothing) return;
  v1::StoredClock now;
  now.set_boot_id(boot_id_);
  now.set_zero_unix_nanos(absl::ToUnixNanos(zero));
  const bool first = zero_ == absl::InfinitePast();
  const auto step = store_.FollowClock(now, first ? absl::ZeroDuration() : gap);
  if (!step.ok()) {
    spdlog::error("clock: {}; tried again", step.status().ToString());
    return;
  }
  zero_ = zero;
  if (*step == absl::ZeroDuration()) return;
  spdlog::warn(
      "the wall clock was set {} by {}: times of active jobs and deadlines of drains are moved "
      "with it",
      *step > absl::ZeroDuration() ? "forward" : "back",
      absl::FormatDuration(absl::Trunc(absl::AbsDuration(*step), absl::Seconds(1))));
  const absl::Status moved = nodes_.MoveDeadlines(*step);
  if (!moved.ok()) spdlog::error("deadlines of drains: {}", moved.ToString());
}

absl::Time ClockFollower::Now() const {
  return zero_ == absl::InfinitePast() ? clock_.Wall() : zero_ + clock_.Monotonic();
}

}  // namespace nsa::server
