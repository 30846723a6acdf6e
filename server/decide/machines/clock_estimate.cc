#include "server/decide/machines/clock_estimate.h"

#include <algorithm>

namespace nsa::server {

void ClockEstimate::Add(int64_t sent_unix_nanos, absl::Duration arrived) {
  if (sent_unix_nanos <= 0) return;
  at_zero_[count_++ % kKept] = absl::Nanoseconds(sent_unix_nanos) - arrived;
}

std::optional<absl::Duration> ClockEstimate::AtZero() const {
  if (count_ == 0) return std::nullopt;
  const auto kept = static_cast<std::ptrdiff_t>(std::min(count_, kKept));
  return *std::max_element(at_zero_.begin(), at_zero_.begin() + kept);
}

}  // namespace nsa::server
