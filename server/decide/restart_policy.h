// Whether and when a failed gang starts again. Pure.
//
//   delay      restart.backoff_seconds · 2^(failures in a row − 1), at most 300 s, ±25 % jitter
//   budget     restart.max_restarts in 24 hours; faults of the machine do not count
//   breaker    restart.max_no_progress generations in a row without a newer checkpoint:
//   NO_PROGRESS.
//              This one counts faults of the machine too: it is what ends a loop.
//   refused    a start that preflight refused, or a worker because the job's checkpoints are not in
//              out_dir (an unmounted volume), began nothing: it is no restart and no generation
//              without progress. The delay doubles with every one in a row; a full disk may be
//              found in the morning, so only a day of them ends the job, with their reason.
//   for good   failures that a restart would repeat are not retried
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/job.pb.h"
#include "server/decide/gang.h"

namespace nsa::server {

// What is known of a job's earlier failures.
struct RestartHistory {
  std::vector<absl::Time> counted;  // restarts that counted, any order
  int32_t without_progress = 0;     // generations in a row before this one
  bool made_progress = false;       // this generation published a newer checkpoint
  int32_t refusals = 0;             // starts refused in a row before this failure
  absl::Duration refused_for;       // since the first of them
};

// Starts of a job that were refused in a row. Kept in memory only: after a restart of the
// coordinator the count begins again, so the job waits longer than it has to.
struct Refusals {
  int32_t count = 0;
  absl::Duration since;       // monotonic: of the first
  int64_t progress_mark = 0;  // ProgressMark() of the job when they were refused
  absl::Duration due;         // monotonic: of a queued job's next start
};

struct RestartDecision {
  bool restart = false;
  absl::Duration delay;          // with restart
  bool counts = false;           // with restart: against the budget
  int32_t without_progress = 0;  // to remember
  std::string reason;            // without restart: UPPER_SNAKE
  std::string text;              // for people
};

// `jitter` is uniform in [0, 1). `policy` has its defaults.
RestartDecision DecideRestart(const v1::RestartSpec& policy, const RestartHistory& history,
                              const Failure& failure, absl::Time now, double jitter);

// How long a job waits for what its starts are refused for.
inline constexpr absl::Duration kLongestRefusal = absl::Hours(24);

// How far back restarts count.
inline constexpr absl::Duration kRestartWindow = absl::Hours(24);

}  // namespace nsa::server
