// Flags whose values are numbers with a fraction, which are passed on as they are written.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::client {

// InvalidArgument, which begins with `flag`, unless `text` is empty or a finite number for which
// `good` is true; `limit` says so in words, "at least 0".
absl::Status CheckNumber(const std::string& flag, const std::string& text, bool (*good)(double),
                         const std::string& limit);

// The same of --temperature.
absl::Status CheckTemperature(const std::string& text);

}  // namespace nsa::client
