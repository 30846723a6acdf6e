// Variables of the environment.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"

namespace nsa {

// The value of a variable without white space at its ends; empty if it is not set. Not for what the
// program itself sets while other threads run.
inline std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : std::string(absl::StripAsciiWhitespace(value));
}

// The variables whose names begin with `prefix`, as they are, by name. Not while another thread
// sets some.
std::map<std::string, std::string> VariablesWith(std::string_view prefix);

// A variable for which a program uses another value than the one that it was given.
struct ReplacedVariable {
  std::string name;
  std::string given;
  std::optional<std::string> used;  // nothing: it is removed

  bool operator==(const ReplacedVariable&) const = default;
};

// Those of `given` that have another value in `now`, or none, in ascending order of names. Pure.
std::vector<ReplacedVariable> ReplacedVariables(const std::map<std::string, std::string>& given,
                                                const std::map<std::string, std::string>& now);

}  // namespace nsa
