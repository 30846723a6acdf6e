// Is a gang stuck? Phase-aware and in two stages: first the stacks of all ranks are dumped, then
// the gang is ended and starts again. Pure. Only what agents measured is judged: a machine that is
// not heard of says nothing, and the wall clock plays no part.
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
  bool heard = false;             // the last heartbeat is recent
  bool running = false;           // the process is there and not ended
  int64_t step = 0;               // steps done
  int64_t first_step = 0;         // steps done when this generation began
  std::string phase;              // common/run/status_page.h PhaseName()
  std::string place;              // the same with layer and kernel, or empty (an older agent)
  std::string process_state;      // the kernel's letter
  absl::Duration since_progress;  // since its status page last changed
};

// `rank` has a worker.
RankProgress ProgressOf(const RankView& rank);

struct HangLimits {
  absl::Duration step;        // restart.hang_timeout_seconds
  absl::Duration start;       // starting, loading, waiting for peers, the first steps
  absl::Duration checkpoint;  // while a checkpoint is taken
};

// step: the spec's. start: at least 600 s. checkpoint: at least five times the last one's duration.
HangLimits LimitsOf(const v1::RestartSpec& policy, absl::Duration last_checkpoint);

// Whether a job is suspected to hang. Kept in memory; after a restart it is found again.
struct HangState {
  bool suspected = false;
  absl::Duration suspected_since;  // monotonic
};

struct HangDecision {
  enum class Kind {
    kFine,  // nothing, or progress has come back
    kDump,  // just became suspect: dump all ranks
    kWait,  // suspect; the dumps are on their way
    kEnd,   // still stuck: end the gang
  };
  Kind kind = Kind::kFine;
  std::string text;  // "rank 1 on a: no progress for 63 s in forward (limit 60 s), process state T"
  int32_t rank = -1;
};

// How long dumps may take before the gang is ended.
inline constexpr absl::Duration kDumpGrace = absl::Seconds(6);

// Steps of a generation that are measured with the start limit: kernels are being compiled, caches
// are cold.
inline constexpr int64_t kWarmupSteps = 5;

HangDecision DecideHang(const std::vector<RankProgress>& ranks, const HangLimits& limits,
                        const HangState& state, absl::Duration now);

}  // namespace nsa::server
