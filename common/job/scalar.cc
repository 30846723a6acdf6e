#include "common/job/scalar.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"

namespace nsa {
namespace {

bool AllDigits(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
}

// "0777" and "-012": some YAML readers take them as octal, others as decimal.
bool LooksOctal(std::string_view word) {
  if (word.starts_with('-') || word.starts_with('+')) word.remove_prefix(1);
  return word.size() > 1 && word[0] == '0' && (AllDigits(word) || word[1] == 'o');
}

std::string Quoted(std::string_view word) { return absl::StrFormat("'%s'", CutText(word, 64)); }

absl::Status OctalError(std::string_view word) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s looks octal; write a decimal number without leading zeros", Quoted(word)));
}

absl::Status NotWholeError(std::string_view word) {
  if (word.empty()) {
    return absl::InvalidArgumentError("empty (must be a whole number); write one, e.g. 100");
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s is not a whole number; write decimal digits only, e.g. 100", Quoted(word)));
}

}  // namespace

absl::StatusOr<int64_t> ParseInteger(std::string_view word, int64_t min, int64_t max) {
  if (LooksOctal(word)) return OctalError(word);
  if (!AllDigits(word.starts_with('-') ? word.substr(1) : word)) return NotWholeError(word);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || value < min || value > max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is out of range (from %d to %d); write a number in this range",
                        Quoted(word), min, max));
  }
  return value;
}

absl::StatusOr<uint64_t> ParseUnsigned(std::string_view word, uint64_t max) {
  if (LooksOctal(word)) return OctalError(word);
  if (!AllDigits(word)) return NotWholeError(word);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || value > max) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is out of range (from 0 to %d); write a number in this range", Quoted(word), max));
  }
  return value;
}

absl::StatusOr<double> ParseDouble(std::string_view word) {
  if (LooksOctal(word)) return OctalError(word);
  std::string lower(word);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* name : {".nan", "nan", ".inf", "inf", "-.inf", "-inf", "+.inf", "+inf"}) {
    if (lower == name) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is not finite; write a finite number", Quoted(word)));
    }
  }
  const std::string_view body = word.starts_with('+') ? word.substr(1) : word;
  const bool plain =
      !body.empty() && body.find_first_not_of("0123456789.eE+-") == body.npos && body[0] != '+';
  double value = 0;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), value);
  if (!plain || error == std::errc::invalid_argument || end != body.data() + body.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is not a number; write one, e.g. 0.1 or 3e-4", Quoted(word)));
  }
  if (error == std::errc::result_out_of_range || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is out of range (1e-307 to 1e308 in magnitude); write a number in this range",
        Quoted(word)));
  }
  return value;
}

absl::StatusOr<bool> ParseBool(std::string_view word) {
  if (word == "true" || word == "True" || word == "TRUE") return true;
  if (word == "false" || word == "False" || word == "FALSE") return false;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is not true or false; write true or false", Quoted(word)));
}

}  // namespace nsa
