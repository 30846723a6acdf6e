// Guards: small state machines that detect when a run goes wrong. They have no side effects; the
// trainer gives them every step and acts on what they return.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::train {

// Limits the events about something that comes and goes. The first event is made at once, the next
// one 1,000 steps later at the earliest. Each pause is twice as long as the one before, until the
// thing has stayed away for twice its pause. An event says how often it happened meanwhile.
class Recurrence {
 public:
  static constexpr int64_t kPause = 1000;  // steps

  // It has happened once more.
  void Count() { ++count_; }

  // Whether there is something that no event has said, and an event may be made at `step`.
  bool Due(int64_t step) const { return count_ > 0 && (pause_ == 0 || step >= last_ + pause_); }

  // Begins the next pause. Returns what the event adds: "" for the first one, later "; again, 212
  // times since step 26,794".
  std::string Said(int64_t step);

 private:
  int64_t count_ = 0;  // since the last event
  int64_t last_ = 0;   // step of the last event
  int64_t pause_ = 0;  // after it; 0 before the first event
};

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

  // Returns what a NONFINITE_SKIPPED event of this step adds (Recurrence); nothing if the step was
  // finite, or if the event has to wait.
  std::optional<std::string> Skipped(int64_t step, bool finite);

  // Number of non-finite steps in a row up to now; saved in checkpoints.
  int32_t consecutive() const { return consecutive_; }

 private:
  const int32_t max_;
  int32_t consecutive_;
  Recurrence skipped_;
};

// guard.stop_on_divergence: notices a run that a uniform guess would beat. A step is bad if its
// training loss is more than 5 % above ln V and above the loss that the run began with, since
// initial weights, or new data, may be worse than a guess. Once the run has been clearly better
// than a guess, a step is bad if it is back there. So a run on random tokens, which stays at ln V,
// has no bad steps. The validation loss does not count: an overfitted model may have any.
//
// Bad steps add up. A better one takes several away, so that single bad batches do not.
class DivergenceGuard {
 public:
  static constexpr double kSlack = 1.05;
  static constexpr double kLearned = 0.9;     // of ln V: clearly better than a guess …
  static constexpr int kLearnedSteps = 10;    // … when it is below for that many steps in a row
  static constexpr double kForgotten = 0.98;  // of ln V: back at a guess
  static constexpr int kSteps = 3;            // bad ones in a row: an event
  static constexpr int kRelief = 10;          // how many bad steps a better one takes away
  static constexpr int kStopSteps = 100;      // bad ones, after the warm-up: the run ends
  static constexpr int kLastSteps = 10;       // bad ones at the last step: the run has failed

  // `vocab`: V. `first_step`: the one whose loss is that at the beginning: 1, or the step after the
  // checkpoint at which the run begins. Without that step the limit is ln V alone.
  explicit DivergenceGuard(int32_t vocab, int64_t first_step = 1);

  // Adds one step. Returns the text of a DIVERGED event after kSteps bad steps in a row, and again
  // only after a better one and a pause (Recurrence).
  std::optional<std::string> Observe(int64_t step, double loss);

  // What the end of the run says if its last step was bad: "the run has diverged: loss 7.11 …".
  std::optional<std::string> verdict() const;

  int bad_steps() const { return bad_; }

  // The first of the bad steps.
  int64_t since() const { return since_; }

 private:
  bool above() const;

  const double uniform_;  // ln V, in nats
  const int64_t first_step_;
  double limit_;
  int64_t step_ = 0;
  double loss_ = 0;
  double lowest_;  // infinity before the first finite loss
  int64_t lowest_step_ = 0;
  int above_ = 0;  // steps in a row
  int below_ = 0;  // steps in a row that were clearly better than a guess
  int bad_ = 0;
  int64_t since_ = 0;
  Recurrence said_;
};

inline constexpr char kLowerTheRate[] = "lower train.lr or lengthen train.warmup_steps";

// What to do about a run that has ended so: "lower train.lr …: nsactl fork JOB --at-step 400 --set
// train.lr=0.0001". `job`: its id; empty for a run by hand. `checkpoint`: the step of the newest
// checkpoint from before the loss rose; 0: there is none.
std::string DivergenceAdvice(const v1::TrainSpec& train, const std::string& job,
                             int64_t checkpoint);

// guard.max_gate_collapse: warns about a layer when its share of collapsed gates, in the mean of
// about 50 steps, rises above the limit. It rises again only after it has fallen below half the
// limit, and there is a pause between the events about a layer (Recurrence).
class GateCollapseGuard {
 public:
  static constexpr int64_t kSteps = 50;

  explicit GateCollapseGuard(double max_share) : max_(max_share) {}

  // Adds one step. Returns the text of a GATE_COLLAPSE event that names the layers, if there are
  // any.
  std::optional<std::string> Observe(int64_t step, std::span<const v1::LayerStats> layers);

 private:
  struct Layer {
    int64_t steps = 0;
    double mean = 0;
    bool above = false;
    Recurrence rises;
  };

  const double max_;
  std::map<int32_t, Layer> layers_;
};

}  // namespace nsa::train
