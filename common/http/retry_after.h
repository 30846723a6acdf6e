// The header Retry-After. Pure.
#pragma once

#include <optional>
#include <string_view>

#include "absl/time/time.h"

namespace nsa {

// The seconds or the date of a Retry-After header, from `now` on; nothing if it is neither.
std::optional<absl::Duration> ParseRetryAfter(std::string_view text, absl::Time now);

}  // namespace nsa
