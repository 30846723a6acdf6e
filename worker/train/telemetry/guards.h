// Guards: small state machines that say when a run is going wrong. Pure; the trainer feeds them
// once a step and acts on what they say.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

// guard.min_tokens_per_second: the job fails when throughput stays below the floor for a minute.
class ThroughputGuard {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  static constexpr int64_t kSteps = 3;  // a single long step is no reason

  // Floor 0 turns it off. It looks after `after_steps` steps of this process, so that a restarted
  // worker warms up again.
  ThroughputGuard(double min_tokens_per_second, int64_t after_steps)
      : floor_(min_tokens_per_second), after_steps_(after_steps) {}

  // Feeds one step: its tokens over all ranks, and how long it took on this rank, without
  // validations and checkpoints. Returns why the job must fail, once every step of the last minute
  // was below the floor.
  std::optional<std::string> Observe(int64_t tokens, absl::Duration taken);

 private:
  const double floor_;
  const int64_t after_steps_;
  int64_t steps_ = 0;
  absl::Duration below_;  // how long every step was below the floor, up to now
  int64_t tokens_below_ = 0;
  int64_t steps_below_ = 0;
};

// guard.max_consecutive_nonfinite: non-finite steps are skipped; more than the limit in a row end
// the run on all ranks.
class NonfiniteGuard {
 public:
  NonfiniteGuard(int32_t max_consecutive, int32_t consecutive)
      : max_(max_consecutive), consecutive_(consecutive) {}

  // Feeds one step, by what all ranks agreed on. Returns why all ranks must stop, when there were
  // more than the allowed number in a row.
  std::optional<std::string> Observe(int64_t step, bool finite);

  // For the checkpoint.
  int32_t consecutive() const { return consecutive_; }

 private:
  const int32_t max_;
  int32_t consecutive_;
};

// guard.max_gate_collapse: warns once a layer when its share of collapsed gates rises above the
// limit, again only after it had fallen under half of it.
class GateCollapseGuard {
 public:
  explicit GateCollapseGuard(double max_share) : max_(max_share) {}

  // Feeds one step. Returns the text of a GATE_COLLAPSE event that names the layers.
  std::optional<std::string> Observe(int64_t step, std::span<const v1::LayerStats> layers);

 private:
  const double max_;
  std::set<int32_t> warned_;  // layers
};

}  // namespace nsa
