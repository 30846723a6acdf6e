// Makes one trace of those of a job's ranks: Chrome's trace event format, usually as gzip, in which
// each rank is a process (worker/train/profile/trace.h describes the files of the ranks). The files
// are read and written line by line: one event is in memory at a time.
//
// The clocks of all ranks become one: a rank's times are moved by the difference of its wall clock
// at time 0 to that of the earliest rank. Ranks on several machines are therefore as far off as
// their wall clocks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/trace/rank_traces.h"

namespace nsa {

// What the traces contain, for the terminal.
struct TraceTotals {
  struct Time {
    int64_t calls = 0;
    double microseconds = 0;
  };
  int64_t first_step = 0;  // 0: none
  int64_t last_step = 0;
  int64_t steps = 0;             // ranges of steps, of all ranks
  double step_microseconds = 0;  // their sum
  int64_t dropped_events = 0;
  std::map<std::pair<std::string, std::string>, Time> times;  // by kind ("cat") and name
  std::set<std::string> notes;                                // what is missing and why
};

// The heads of the complete traces: steps, notes and where time begins. DataLoss, which names the
// rank, when one is no trace of a rank.
struct TraceHeads {
  TraceTotals totals;                          // without times
  std::map<int32_t, int64_t> base_unix_nanos;  // by rank
};
absl::StatusOr<TraceHeads> ReadHeads(const RankTraces& traces);

// "demo-steps-121-123.json.gz": letters, digits and "-_." of `job`, its name or id.
std::string TraceFileName(const std::string& job, const TraceTotals& totals);

// Writes the merged trace with `write`, compressed unless it shall be `plain`, and returns what it
// contains. `job` is its name or id. DataLoss as ReadHeads(); the error of `write`.
absl::StatusOr<TraceTotals> MergeTraces(const RankTraces& traces, const TraceHeads& heads,
                                        const std::string& job,
                                        const std::function<absl::Status(std::string_view)>& write,
                                        bool plain = false);

}  // namespace nsa
