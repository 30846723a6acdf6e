// Looks at the tokens of a token file of this machine, without reading all of a large one.
#pragma once

#include <cstdint>
#include <filesystem>

#include "absl/status/statusor.h"

namespace nsa {

struct TokenSample {
  int64_t tokens = 0;     // of the file
  int64_t looked_at = 0;  // from its beginning to its end; all of a file of up to four million
  int64_t largest = -1;   // of those
  int64_t position = 0;   // where it comes first among those
};

// Checks the file's header too, or that of its index. The errors of OpenJobFile(), FindTokens() and
// CheckToken().
absl::StatusOr<TokenSample> SampleTokens(const std::filesystem::path& path);

}  // namespace nsa
