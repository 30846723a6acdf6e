// Job files of the Python system: keys that mean nothing here any more, and defaults that its
// files rely on.
#pragma once

#include <string>
#include <string_view>

#include "common/job/load.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct LegacyRule {
  std::string_view field;        // "runtime.use_flash"; a trailing * matches any ending
  std::string_view replacement;  // key of the same section that is meant, or empty
  std::string_view why;
};

// The rule for a field path, or null when it is not a key of the Python system.
const LegacyRule* FindLegacyRule(std::string_view field);

// When `result` has legacy keys, the file was written for the Python system: gives the spec that
// system's defaults where they differ from ours, and adds the notes that its owner needs.
void CompleteLegacyFile(LoadResult* result, v1::JobSpec* spec);

}  // namespace nsa
