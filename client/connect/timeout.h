// How long to wait for the coordinator, as users write it.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace nsa::client {

// "10s", "2m", or a number of seconds; nothing unless it is a duration above 0.
inline std::optional<absl::Duration> ParseTimeout(const std::string& text) {
  const bool number = text.find_first_not_of("0123456789.") == std::string::npos && !text.empty();
  absl::Duration timeout;
  if (!absl::ParseDuration(number ? text + "s" : text, &timeout)) return std::nullopt;
  if (timeout <= absl::ZeroDuration()) return std::nullopt;
  return timeout;
}

}  // namespace nsa::client
