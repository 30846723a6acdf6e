// nsactl submit --sweep: submits a job file once for each combination of values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/session.h"
#include "client/exit_code.h"

namespace nsa::client {

struct SweepFlags {
  std::vector<std::string> axes;  // --sweep
  std::string name;               // --sweep-name; empty: the job's
  int64_t draw = 0;               // --draw; 0: all combinations
  int64_t seed = 1;               // --draw-seed
  bool stop_worst = false;        // --stop-worst
  std::vector<int64_t> halve_at;  // --halve-at
};

// Checks all jobs first and submits none unless all are accepted. A repeated call submits what is
// missing: request ids follow from the jobs.
absl::StatusOr<ExitCode> SubmitSweep(Session& session, const std::string& file,
                                     const std::vector<std::string>& sets, const SweepFlags& flags);

}  // namespace nsa::client
