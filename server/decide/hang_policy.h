// Whether a gang is stuck. The limits depend on the phase a rank is in. There are three stages:
// long before the limit the stacks of all ranks are saved and nothing else happens; at the limit
// they are saved again; then the gang is ended and restarted. Pure. Only what agents measured
// counts: a machine without heartbeats is never judged to hang, and the wall clock plays no part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/job.pb.h"
#include "server/decide/gang.h"

namespace nsa::server {

// One rank as its agent last saw it.
struct RankProgress {
  int32_t rank = 0;
  std::string node;
  bool heard = false;             // its machine is ready: the last heartbeat is recent
  bool running = false;           // the process has not ended
  int64_t step = 0;               // steps done
  int64_t first_step = 0;         // steps done when this generation began
  std::string phase;              // common/run/status_page.h PhaseName()
  std::string place;              // the phase with layer and kernel; empty from an older agent
  std::string process_state;      // the process state letter of /proc, e.g. R, S, D, T
  absl::Duration since_progress;  // since its status page last changed
};

// `rank` has a worker.
RankProgress ProgressOf(const RankView& rank);

struct HangLimits {
  absl::Duration step;        // restart.hang_timeout_seconds
  absl::Duration start;       // starting, loading, waiting for peers, the first steps
  absl::Duration checkpoint;  // while a checkpoint is taken
};

// step: from the spec. start: the same, but at least 600 s. checkpoint: the same, but at least five
// times the duration of the last checkpoint.
HangLimits LimitsOf(const v1::RestartSpec& policy, absl::Duration last_checkpoint);

// Whether a job is suspected to hang. Kept in memory only; after a restart of the coordinator the
// suspicion arises again.
struct HangState {
  bool suspected = false;
  absl::Duration suspected_since;                       // monotonic
  absl::Duration saved_at = -absl::InfiniteDuration();  // monotonic: kSave was last carried out
};

struct HangDecision {
  enum class Kind {
    kFine,  // no suspicion, or progress has resumed
    kSave,  // no progress for a while, far below the limit: save the stacks of all ranks
    kDump,  // a hang is now suspected: dump all ranks
    kWait,  // suspected; the dumps are being taken
    kEnd,   // still stuck: end the gang
  };
  Kind kind = Kind::kFine;
  std::string text;  // "rank 1 on a: no progress for 63 s in forward (limit 60 s), process state T"
  int32_t rank = -1;
  absl::Duration since_progress;  // of that rank
};

// A rank without progress for this long, or for half its limit if that is shorter, has the stacks
// of all ranks saved: once for each standstill, and not again within this time.
inline constexpr absl::Duration kSaveStacksAfter = absl::Seconds(180);

// Time between the suspicion and the end of the gang, in which dumps are taken.
inline constexpr absl::Duration kDumpGrace = absl::Seconds(6);

// The start limit also applies to this many first steps of a generation: kernels are being compiled
// and caches are cold.
inline constexpr int64_t kWarmupSteps = 5;

HangDecision DecideHang(const std::vector<RankProgress>& ranks, const HangLimits& limits,
                        const HangState& state, absl::Duration now);

}  // namespace nsa::server
