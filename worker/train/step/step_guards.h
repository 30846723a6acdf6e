// The guards of a run (telemetry/guards.h), which are evaluated together after every step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/estimate/estimate.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/comm/stop.h"
#include "worker/train/step/ending.h"
#include "worker/train/telemetry/guards.h"
#include "worker/train/telemetry/reporter.h"

namespace nsa::train {

class StepGuards {
 public:
  // `consecutive_nonfinite`: how many steps right before the first one were skipped as non-finite.
  // `first_step`: the one that the divergence guard takes for the beginning of the run.
  StepGuards(const v1::JobSpec& spec, int32_t consecutive_nonfinite, int64_t first_step = 1)
      : throughput_(FloorOf(spec), spec.guard().after_steps()),
        nonfinite_(spec.guard().max_consecutive_nonfinite(), consecutive_nonfinite),
        gate_(spec.guard().max_gate_collapse()),
        divergence_(VocabOf(spec), first_step),
        stop_on_divergence_(!spec.guard().has_stop_on_divergence() ||
                            spec.guard().stop_on_divergence()),
        warmup_steps_(spec.train().warmup_steps()) {}

  // Gives a completed step to all guards; warnings go to `reporter`. Returns how the run ends when
  // a guard of this or another rank ends it.
  std::optional<Ending> Observe(const v1::StepRecord& record, const Agreement& agreement,
                                Reporter* reporter);

  // After the last step of a run that nobody stopped: how it ends if it has diverged.
  std::optional<Ending> ObserveEnd() const { return DivergedFor(DivergenceGuard::kLastSteps); }

  // Completes how the run ends: if its last loss is above that of a uniform guess, the text says
  // so, and a run that did all its steps has the reason DIVERGED.
  Ending Judge(Ending ending) const;

  // Whether the run seems to diverge, so that a checkpoint would take the place of a better one.
  bool diverging() const {
    return stop_on_divergence_ && divergence_.bad_steps() >= DivergenceGuard::kSteps;
  }

  // The first of the steps whose loss is above that of a uniform guess.
  int64_t diverging_since() const { return divergence_.since(); }

  // Whether this rank's throughput has been too low for too long. Told to the other ranks.
  bool too_slow() const { return too_slow_.has_value(); }

  // Number of non-finite steps in a row up to now; saved in checkpoints.
  int32_t consecutive_nonfinite() const { return nonfinite_.consecutive(); }

 private:
  // How the run ends if it has diverged for so many steps.
  std::optional<Ending> DivergedFor(int steps) const;

  // Without a floor in the job it is measured on a GPU, which a job has to itself. On the CPU other
  // jobs come and go, so there is none.
  static std::optional<double> FloorOf(const v1::JobSpec& spec) {
    if (spec.guard().has_min_tokens_per_second()) return spec.guard().min_tokens_per_second();
    if (spec.runtime().device() == v1::DEVICE_CUDA) return std::nullopt;
    return 0;
  }

  ThroughputGuard throughput_;
  NonfiniteGuard nonfinite_;
  GateCollapseGuard gate_;
  DivergenceGuard divergence_;
  const bool stop_on_divergence_;
  const int64_t warmup_steps_;
  std::optional<std::string> too_slow_;
};

}  // namespace nsa::train
