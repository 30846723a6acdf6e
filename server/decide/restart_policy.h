// Whether and when a failed gang starts again. Pure.
//
//   delay      restart.backoff_seconds · 2^(failures in a row − 1), at most 300 s, ±25 % jitter
//   budget     restart.max_restarts in 24 hours; faults of the machine do not count
//   breaker    after restart.max_no_progress generations in a row without a newer checkpoint the
//              job fails with NO_PROGRESS. Faults of the machine count here: this ends endless
//              loops of restarts. A generation that was cut short (it trained, and a fault of the
//              machine or a SIGKILL from outside ended it before the step of its next checkpoint)
//              says little about the job: kCutShortForOne of them count as one.
//   refused    a start that preflight refused, or that a worker refused, e.g. because the
//              job's checkpoints are not in out_dir (an unmounted volume). Nothing was begun, so it
//              is neither a restart nor a generation without progress. The delay doubles with each
//              refusal in a row. Only after 24 hours of refusals does the job fail, with their
//              reason, since nobody may notice a full disk before the morning.
//   for good   a failure that a restart would repeat is not retried
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
  int32_t without_progress = 0;     // generations in a row without progress, before this one
  int32_t cut_short = 0;            // generations since the last progress that were cut short
  bool made_progress = false;       // this generation published a newer checkpoint
  bool before_checkpoint = false;   // it trained, and its next checkpoint was not due yet
  int32_t refusals = 0;             // starts refused in a row before this failure
  absl::Duration refused_for;       // time since the first of them
};

// Starts of a job that were refused in a row. Kept in memory only: after a restart of the
// coordinator the count and the 24 hours begin again.
struct Refusals {
  int32_t count = 0;
  absl::Duration since;       // monotonic: when the first was refused
  int64_t progress_mark = 0;  // ProgressMark() of the job when they were refused
  absl::Duration due;         // monotonic: when a queued job may be placed again
};

struct RestartDecision {
  bool restart = false;
  absl::Duration delay;          // with restart
  bool counts = false;           // with restart: counts against the budget
  int32_t without_progress = 0;  // the new values of the job's counts
  int32_t cut_short = 0;
  std::string reason;  // without restart: UPPER_SNAKE
  std::string text;    // human-readable
};

// `jitter` is uniform in [0, 1). `policy` has its defaults.
RestartDecision DecideRestart(const v1::RestartSpec& policy, const RestartHistory& history,
                              const Failure& failure, absl::Time now, double jitter);

// Generations that were cut short and count as one without progress.
inline constexpr int32_t kCutShortForOne = 4;

// A job fails when its starts have been refused for this long.
inline constexpr absl::Duration kLongestRefusal = absl::Hours(24);

// Restarts within this time count against the budget.
inline constexpr absl::Duration kRestartWindow = absl::Hours(24);

}  // namespace nsa::server
