#include "worker/train/telemetry/guards.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"

namespace nsa::train {

std::string Recurrence::Said(int64_t step) {
  std::string text;
  if (pause_ > 0) {
    text = absl::StrCat("; again, ", nsa::Count(count_, "time"), " since step ", Grouped(last_));
  }
  const bool calm = step - last_ > 2 * pause_;
  pause_ = pause_ == 0 || calm ? kPause : 2 * pause_;
  last_ = step;
  count_ = 0;
  return text;
}

void ThroughputGuard::Measure(int64_t tokens, absl::Duration taken) {
  measured_ += taken;
  measured_tokens_ += tokens;
  ++measured_steps_;
  if (measured_ < kPatience || measured_steps_ < kSteps) return;
  floor_ =
      kMeasuredShare * static_cast<double>(measured_tokens_) / absl::ToDoubleSeconds(measured_);
}

std::optional<std::string> ThroughputGuard::Observe(int64_t tokens, absl::Duration taken) {
  if ((floor_ && *floor_ <= 0) || ++steps_ <= after_steps_) return std::nullopt;
  if (!floor_) {
    Measure(tokens, taken);
    return std::nullopt;
  }
  if (static_cast<double>(tokens) >= *floor_ * absl::ToDoubleSeconds(taken)) {
    below_ = absl::ZeroDuration();
    tokens_below_ = 0;
    steps_below_ = 0;
    return std::nullopt;
  }
  below_ += taken;
  tokens_below_ += tokens;
  ++steps_below_;
  if (below_ < kPatience || steps_below_ < kSteps) return std::nullopt;
  return absl::StrFormat(
      "throughput: %.0f tokens a second over %s (guard.min_tokens_per_second: %.0f%s); see where "
      "the step's time goes, or lower the floor",
      static_cast<double>(tokens_below_) / absl::ToDoubleSeconds(below_),
      absl::FormatDuration(below_), *floor_,
      measured_steps_ > 0 ? ", a third of the speed in the first minute" : "");
}

std::optional<std::string> NonfiniteGuard::Skipped(int64_t step, bool finite) {
  if (finite) return std::nullopt;
  skipped_.Count();
  if (!skipped_.Due(step)) return std::nullopt;
  return skipped_.Said(step);
}

std::optional<std::string> NonfiniteGuard::Observe(int64_t step, bool finite) {
  consecutive_ = finite ? 0 : consecutive_ + 1;
  if (consecutive_ <= max_) return std::nullopt;
  return absl::StrFormat(
      "loss or gradient norm: not finite for %d steps up to step %d "
      "(guard.max_consecutive_nonfinite: "
      "%d); lower train.lr, lengthen train.warmup_steps or look at the data",
      consecutive_, step, max_);
}

DivergenceGuard::DivergenceGuard(int32_t vocab, int64_t first_step)
    : uniform_(std::log(std::max(vocab, 2))),
      first_step_(first_step),
      limit_(kSlack * uniform_),
      lowest_(std::numeric_limits<double>::infinity()) {}

// A loss that is not finite is above every limit.
bool DivergenceGuard::above() const { return step_ > 0 && !(loss_ <= limit_); }

std::optional<std::string> DivergenceGuard::Observe(int64_t step, double loss) {
  if (step == first_step_ && std::isfinite(loss)) limit_ = kSlack * std::max(uniform_, loss);
  step_ = step;
  loss_ = loss;
  if (loss < lowest_) {
    lowest_ = loss;
    lowest_step_ = step;
  }
  below_ = loss < kLearned * uniform_ ? below_ + 1 : 0;
  if (below_ == kLearnedSteps) limit_ = kForgotten * uniform_;
  if (!above()) {
    above_ = 0;
    bad_ = std::max(0, bad_ - kRelief);
    return std::nullopt;
  }
  if (bad_++ == 0) since_ = step;
  if (++above_ == kSteps) said_.Count();
  if (above_ < kSteps || !said_.Due(step)) return std::nullopt;
  const std::string row = above_ == kSteps ? "the third such step in a row"
                                           : absl::StrCat(above_, " such steps in a row");
  return absl::StrCat(*verdict(), ", ", row, said_.Said(step), "; ", kLowerTheRate);
}

std::optional<std::string> DivergenceGuard::verdict() const {
  if (!above()) return std::nullopt;
  const std::string best =
      lowest_step_ > 0 ? absl::StrFormat(", at best %.4g at step %d", lowest_, lowest_step_) : "";
  return absl::StrFormat("the run has diverged: loss %.4g at step %d%s (a uniform guess has %.4g)",
                         loss_, step_, best, uniform_);
}

std::string DivergenceAdvice(const v1::TrainSpec& train, const std::string& job,
                             int64_t checkpoint) {
  std::string text = absl::StrCat(
      kLowerTheRate, "; begin again ",
      checkpoint > 0 ? absl::StrCat("from the checkpoint of step ", checkpoint) : "from step 0");
  if (job.empty()) return text;
  absl::StrAppendFormat(&text, ": nsactl fork %s --at-step %d --set train.lr=%g", job, checkpoint,
                        train.lr() / 2);
  if (train.has_muon_lr()) {
    absl::StrAppendFormat(&text, " --set train.muon_lr=%g", train.muon_lr() / 2);
  }
  return text;
}

std::optional<std::string> GateCollapseGuard::Observe(int64_t step,
                                                      std::span<const v1::LayerStats> layers) {
  std::vector<std::string> risen;
  for (const v1::LayerStats& stats : layers) {
    const double share = stats.gate().collapse_ratio();
    if (!std::isfinite(share)) continue;
    Layer& layer = layers_[stats.layer()];
    layer.mean += (share - layer.mean) / static_cast<double>(std::min(++layer.steps, kSteps));
    if (layer.steps < kSteps) continue;
    if (layer.mean > max_ && !layer.above) {
      layer.above = true;
      layer.rises.Count();
    } else if (layer.mean < max_ / 2) {
      layer.above = false;
    }
    if (layer.mean <= max_ || !layer.rises.Due(step)) continue;
    risen.push_back(absl::StrFormat("layer %d: %.3f", stats.layer(), layer.mean));
    risen.back() += layer.rises.Said(step);
  }
  if (risen.empty()) return std::nullopt;
  return absl::StrFormat(
      "share of collapsed gates in the mean of %d steps, at step %d: %s "
      "(guard.max_gate_collapse: %g); one branch has taken over, or all gates are near 0; a lower "
      "train.lr may help",
      kSteps, step, absl::StrJoin(risen, ", "), max_);
}

}  // namespace nsa::train
