// Job files of the Python system: keys that have no effect or another name here, and defaults that
// such files rely on.
#pragma once

#include <string>
#include <string_view>

#include "common/job/load.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct LegacyRule {
  std::string_view field;        // "runtime.use_flash"; a trailing * matches any ending
  std::string_view replacement;  // the key of the same section to use instead, or empty
  std::string_view why;          // what happens with the key and why, for a warning
};

// The rule for a field path; null if it is not a key of the Python system.
const LegacyRule* FindLegacyRule(std::string_view field);

// If `result` has legacy keys, the file was written for the Python system. Then this function sets
// absent fields to that system's defaults where they differ from ours (model.n_layers,
// train.weight_decay), and adds a note for each of them and for train.steps.
void CompleteLegacyFile(LoadResult* result, v1::JobSpec* spec);

}  // namespace nsa
