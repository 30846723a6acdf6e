// One key of a job and its value on a command line: train.steps=100.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/load.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct Assignment {
  std::string field;  // as it is written
  std::vector<std::string> path;
  std::string value;
};

// Splits FIELD=VALUE. A part of FIELD may be in quotes, as YAML has them, and is then one name
// whatever is in it: data.val."a.b". The name in a map at the end of FIELD may also have dots
// without quotes: data.where.meta.source. The error is "what; fix" without FIELD=VALUE itself.
absl::StatusOr<Assignment> ParseAssignment(std::string_view text);

// Loads it into `spec`, which is cleared first, by the rules of a job file. A value that begins
// with a bracket, a brace or a quote is YAML, and nothing may follow it; any other is one value,
// whatever characters it has. The places of the keys mean nothing. Errors as LoadYamlText().
absl::StatusOr<LoadResult> LoadAssignment(const Assignment& assignment, std::string_view file,
                                          v1::JobSpec* spec);

}  // namespace nsa
