// Variables of the environment.
#pragma once

#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"

namespace nsa {

// The value of a variable without white space at its ends; empty if it is not set. Not for what the
// program itself sets while other threads run.
inline std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : std::string(absl::StripAsciiWhitespace(value));
}

}  // namespace nsa
