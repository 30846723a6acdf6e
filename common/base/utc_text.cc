#include "common/base/utc_text.h"

#include "absl/time/time.h"

namespace nsa {

std::string UtcText(int64_t unix_nanos) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixNanos(unix_nanos),
                          absl::UTCTimeZone());
}

}  // namespace nsa
