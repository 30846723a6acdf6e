// Guards: small state machines that detect when a run goes wrong. They have no side effects; the
// trainer gives them every step and acts on what they return.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::train {

// guard.min_tokens_per_second: the job fails when throughput stays below the floor for a minute.
// Without a floor, it is a third of the speed that the job reaches in its first minute.
class ThroughputGuard {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  static constexpr int64_t kSteps = 3;  // fewer steps, e.g. a single long one, do not count
  static constexpr double kMeasuredShare = 1.0 / 3;

  // A floor of 0 turns the guard off; without a floor it is measured in the first minute, and at
  // least three steps, after the warm-up. The guard ignores the first `after_steps` steps of this
  // process, so that a restarted worker can warm up, and measure, again.
  ThroughputGuard(std::optional<double> min_tokens_per_second, int64_t after_steps)
      : floor_(min_tokens_per_second), after_steps_(after_steps) {}

  // Adds one step: its tokens over all ranks, and how long it took on this rank, without
  // validations and checkpoints. Returns why the job must fail, once the steps of at least the last
  // minute (and at least kSteps of them) were all below the floor.
  std::optional<std::string> Observe(int64_t tokens, absl::Duration taken);

 private:
  // Adds a step to the measurement; sets the floor when it is complete.
  void Measure(int64_t tokens, absl::Duration taken);

  std::optional<double> floor_;
  const int64_t after_steps_;
  int64_t steps_ = 0;
  absl::Duration below_;  // total time of the latest steps below the floor
  int64_t tokens_below_ = 0;
  int64_t steps_below_ = 0;
  absl::Duration measured_;  // zero if the job sets the floor
  int64_t measured_tokens_ = 0;
  int64_t measured_steps_ = 0;
};

// guard.max_consecutive_nonfinite: the update of a non-finite step is skipped. More such steps in a
// row than the limit end the run on all ranks.
class NonfiniteGuard {
 public:
  NonfiniteGuard(int32_t max_consecutive, int32_t consecutive)
      : max_(max_consecutive), consecutive_(consecutive) {}

  // Adds one step; `finite` is what all ranks agreed on. Returns why all ranks must stop, when
  // there were more non-finite steps in a row than the limit.
  std::optional<std::string> Observe(int64_t step, bool finite);

  // Number of non-finite steps in a row up to now; saved in checkpoints.
  int32_t consecutive() const { return consecutive_; }

 private:
  const int32_t max_;
  int32_t consecutive_;
};

// Notices a run that a uniform guess would beat: its loss is more than 5 % above ln V and above the
// loss that it began with, since initial weights may already be a little worse than a guess.
class DivergenceGuard {
 public:
  static constexpr double kSlack = 1.05;
  static constexpr int kSteps = 3;  // in a row; a single bad batch is no divergence

  // `vocab`: V. The comparison with the loss at the beginning needs step 1; a resumed run is
  // compared with ln V alone.
  explicit DivergenceGuard(int32_t vocab);

  // Adds one step. Returns the text of a DIVERGED event after kSteps steps in a row above the
  // limit, and again only after a step below it.
  std::optional<std::string> Observe(int64_t step, double loss);

  // What the end of the run says if its last step was above the limit: "loss 7.11 is above 5.55,
  // …".
  std::optional<std::string> verdict() const;

 private:
  bool above() const;

  const double uniform_;  // ln V, in nats
  double limit_;
  double loss_ = 0;
  int64_t steps_ = 0;
  int above_ = 0;  // steps in a row
};

// guard.max_gate_collapse: warns about a layer when its share of collapsed gates rises above the
// limit. It warns about the same layer again only after the share has fallen below half the limit.
class GateCollapseGuard {
 public:
  explicit GateCollapseGuard(double max_share) : max_(max_share) {}

  // Adds one step. Returns the text of a GATE_COLLAPSE event that names the layers, if there are
  // any.
  std::optional<std::string> Observe(int64_t step, std::span<const v1::LayerStats> layers);

 private:
  const double max_;
  std::set<int32_t> warned_;  // layers
};

}  // namespace nsa::train
