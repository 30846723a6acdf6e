#include "common/estimate/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace nsa {

namespace {

// Steps 1 to this one are at the peak, or before it.
int64_t LastAtPeak(const v1::TrainSpec& train) {
  const int64_t peak = std::max<int64_t>(train.warmup_steps(), 1);
  if (train.lr_schedule() != v1::LR_SCHEDULE_WSD) return peak;
  return std::max(peak, train.steps() - DecaySteps(train));
}

// Share of the way from the floor to the peak after this share of the steps after the peak.
double Height(v1::LrSchedule schedule, double progress) {
  if (schedule == v1::LR_SCHEDULE_LINEAR || schedule == v1::LR_SCHEDULE_WSD) return 1.0 - progress;
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace

int64_t DecaySteps(const v1::TrainSpec& train) {
  return train.has_decay_steps() ? train.decay_steps() : std::max<int64_t>(train.steps() / 5, 1);
}

double LearningRate(const v1::TrainSpec& train, int64_t step) {
  const int64_t warmup = train.warmup_steps();
  if (step < warmup) return train.lr() * static_cast<double>(step) / static_cast<double>(warmup);
  const int64_t peak = LastAtPeak(train);
  if (step <= peak || train.steps() <= peak || train.lr_schedule() == v1::LR_SCHEDULE_CONSTANT) {
    return train.lr();
  }
  const double floor = train.min_lr_ratio() * train.lr();
  if (step >= train.steps()) return floor;
  const double progress =
      static_cast<double>(step - peak) / static_cast<double>(train.steps() - peak);
  return floor + (train.lr() - floor) * Height(train.lr_schedule(), progress);
}

std::string FlagsToTrainFurther(const v1::TrainSpec& train) {
  v1::TrainSpec longer = train;
  longer.set_steps(2 * train.steps());
  const int64_t next = train.steps() + 1;
  const bool jumps = LearningRate(train, next) != LearningRate(longer, next);
  return absl::StrCat("--set train.steps=", longer.steps(),
                      jumps ? " --set restart.allow_new_schedule=true" : "");
}

}  // namespace nsa
