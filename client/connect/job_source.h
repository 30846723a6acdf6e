// A job file as submit and validate take it: loaded, changed by --set, placed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connect/session.h"
#include "common/job/load.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// Applies "train.steps=100" to a spec. The value is YAML, read by the loader of job files with its
// rules; lists are replaced, maps (labels, preflight.waive) gain or change an entry.
// InvalidArgument says what is wrong with it.
absl::Status ApplySet(const std::string& assignment, v1::JobSpec* spec);

// Reads `file` ("-": standard input), applies `sets` in order, takes relative paths from the
// current directory. Places of fields that --set changed are dropped. Every error is
// InvalidArgument, one line a mistake.
absl::StatusOr<JobFile> LoadJobSource(const std::string& file,
                                      const std::vector<std::string>& sets);

// `file` as shown in messages.
std::string ShownName(const std::string& file);

// Remarks on keys of the Python system that mean nothing here, one line each.
void NoteLegacyKeys(Session& session, const std::string& file, const JobFile& job);

// "memory 3.20 GiB".
std::string EstimateText(const v1::EstimateItem& item);

// "job.yaml: refused by preflight: 3 errors (0 allowed); …", the last line of a refusal.
std::string RefusalText(const std::string& file, const v1::PreflightReport& report);

}  // namespace nsa::client
