#include "common/http/retry_after.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"

namespace nsa {

std::optional<absl::Duration> ParseRetryAfter(std::string_view text, absl::Time now) {
  const absl::string_view view(text.data(), text.size());
  int64_t seconds = 0;
  if (absl::SimpleAtoi(view, &seconds) && seconds >= 0) return absl::Seconds(seconds);
  absl::Time time;
  std::string fault;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", view, absl::UTCTimeZone(), &time, &fault)) {
    return std::nullopt;
  }
  return std::max(time - now, absl::ZeroDuration());
}

}  // namespace nsa
