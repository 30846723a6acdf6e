// Strict conversion of plain YAML words to numbers and booleans. Errors have the form `what; fix`,
// without the field.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace nsa {

// Decimal digits with an optional minus, within [min, max]. "0777", "0x1F", "1_000" and "1e3" are
// errors that say what to write instead.
absl::StatusOr<int64_t> ParseInteger(std::string_view word, int64_t min, int64_t max);

// As ParseInteger, for uint64 fields.
absl::StatusOr<uint64_t> ParseUnsigned(std::string_view word, uint64_t max);

// A finite decimal number, with or without exponent.
absl::StatusOr<double> ParseDouble(std::string_view word);

// true, True, TRUE, false, False or FALSE.
absl::StatusOr<bool> ParseBool(std::string_view word);

}  // namespace nsa
