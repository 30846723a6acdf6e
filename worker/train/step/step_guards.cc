#include "worker/train/step/step_guards.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/reason.h"

namespace nsa::train {

std::optional<Ending> StepGuards::Observe(const v1::StepRecord& record, const Agreement& agreement,
                                          Reporter* reporter) {
  const std::vector<v1::LayerStats> layers(record.layers().begin(), record.layers().end());
  if (const auto text = gate_.Observe(record.step(), layers)) {
    reporter->Event(Reason::kGateCollapse, *text, v1::SEVERITY_WARNING);
  }
  if (const auto text = divergence_.Observe(record.step(), record.loss())) {
    const std::string then =
        stop_on_divergence_
            ? absl::StrFormat(
                  "; no checkpoint is saved while this lasts, and %d such steps end the run "
                  "(guard.stop_on_divergence)",
                  DivergenceGuard::kStopSteps)
            : "";
    reporter->Event(Reason::kDiverged, absl::StrCat(*text, then), v1::SEVERITY_ERROR);
  }
  if (!too_slow_) {
    too_slow_ = throughput_.Observe(record.tokens(), absl::Seconds(record.times().step_seconds()));
  }
  if (const auto again = nonfinite_.Skipped(record.step(), agreement.finite)) {
    reporter->Event(Reason::kNonfiniteSkipped,
                    absl::StrFormat("step %d: loss %g, gradient norm %g: the update is skipped%s",
                                    record.step(), record.loss(), record.grad_norm(), *again),
                    v1::SEVERITY_WARNING);
  }
  if (const auto text = nonfinite_.Observe(record.step(), agreement.finite)) {
    return Ending{v1::OUTCOME_FAILED_FINAL, Word(Reason::kNonfiniteLoss), *text};
  }
  if (agreement.too_slow) {
    return Ending{v1::OUTCOME_FAILED_FINAL, Word(Reason::kThroughputTooLow),
                  too_slow_.value_or("another rank's throughput is below the floor")};
  }
  if (record.step() <= warmup_steps_) return std::nullopt;
  return DivergedFor(DivergenceGuard::kStopSteps);
}

std::optional<Ending> StepGuards::DivergedFor(int steps) const {
  if (!stop_on_divergence_ || divergence_.bad_steps() < steps) return std::nullopt;
  const std::optional<std::string> verdict = divergence_.verdict();
  if (!verdict.has_value()) return std::nullopt;
  return Ending{v1::OUTCOME_FAILED_FINAL, Word(Reason::kDiverged), *verdict};
}

Ending StepGuards::Judge(Ending ending) const {
  const std::optional<std::string> verdict = divergence_.verdict();
  if (!verdict.has_value()) return ending;
  if (ending.outcome == v1::OUTCOME_COMPLETED) ending.reason = Word(Reason::kDiverged);
  absl::StrAppend(&ending.text, "; ", *verdict, "; ", kLowerTheRate);
  return ending;
}

}  // namespace nsa::train
