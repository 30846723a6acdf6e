// Loads a job file for submit and validate: reads it, applies --set, makes its paths absolute.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connect/session.h"
#include "common/job/load.h"
#include "nsa/v1/preflight.pb.h"

namespace nsa::client {

// Applies "train.steps=100" to a spec. The value is YAML, read by the loader of job files with its
// rules; lists are replaced, maps (labels, preflight.waive) gain or change an entry.
// Returns the fields that were set, with places that mean nothing. The error is InvalidArgument and
// says what is wrong with the assignment, which the user gave to `flag`.
absl::StatusOr<SourceMap> ApplySet(const std::string& assignment, v1::JobSpec* spec,
                                   const std::string& flag = "--set");

// Applies several to the spec of a job that the coordinator knows. Relative paths in them start at
// the current directory, as those of a job file.
absl::Status ApplySets(const std::vector<std::string>& assignments, v1::JobSpec* spec,
                       const std::string& flag = "--set");

// Reads `file` ("-": standard input), applies `sets` in order, and resolves relative paths against
// the current directory. Places of fields that --set changed are dropped. Every error is
// InvalidArgument, with one line per mistake.
absl::StatusOr<JobFile> LoadJobSource(const std::string& file,
                                      const std::vector<std::string>& sets);

// `file` as shown in messages.
std::string ShownName(const std::string& file);

// Prints a note for each key of the Python system that has no effect here.
void NoteLegacyKeys(Session& session, const std::string& file, const JobFile& job);

// "memory 3.20 GiB".
std::string EstimateText(const v1::EstimateItem& item);

// "job.yaml: refused by preflight: 3 errors; …", the last line of a refusal.
std::string RefusalText(const std::string& file, const v1::PreflightReport& report);

}  // namespace nsa::client
