// The documents of nsactl needle and nsactl data needle: what is hidden in which text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli.h"

namespace nsa::client {

struct NeedleText {
  std::string task = "key", filler;
  int64_t seed = 1;
};

// Declares --task, --filler and --seed; `text` holds their defaults.
void AddNeedleText(Options* options, NeedleText* text);

// The same for nsa-worker. The errors of CheckInputFile().
absl::StatusOr<std::vector<std::string>> NeedleTextWords(const NeedleText& text);

}  // namespace nsa::client
