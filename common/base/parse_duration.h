// Durations as users write them: "90s", "10m", "1h30m", "2d".
#pragma once

#include <optional>
#include <string_view>

#include "absl/time/time.h"

namespace nsa {

// absl's form, and days. Nothing for other texts, for a duration that is not finite, and for a
// negative one.
std::optional<absl::Duration> ParseDuration(std::string_view text);

}  // namespace nsa
