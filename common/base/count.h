// Numbers in messages.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace nsa {

// Count(1, "rank") is "1 rank", Count(2, "rank") is "2 ranks". The plural of `noun` must end in s.
inline std::string Count(int64_t number, std::string_view noun) {
  return std::to_string(number) + " " + std::string(noun) + (number == 1 ? "" : "s");
}

// "12,345,678".
inline std::string Grouped(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

// "1,000,000", "0.5", "1e-10": all digits before the point, never "1e+06", and of another number
// than a whole one at most `digits` in all.
inline std::string Number(double value, int digits = 10) {
  const double size = std::abs(value);
  const bool whole = size == std::trunc(size) || size >= std::pow(10, digits) - 0.5;
  if (whole && size < 9e15) return Grouped(std::llround(value));  // those are exact
  return absl::StrFormat("%.*g", digits, value);
}

}  // namespace nsa
