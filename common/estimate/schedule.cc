#include "common/estimate/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nsa {

double LearningRate(const v1::TrainSpec& train, int64_t step) {
  const int64_t warmup = train.warmup_steps();
  if (step < warmup) return train.lr() * static_cast<double>(step) / static_cast<double>(warmup);
  const int64_t peak = std::max<int64_t>(warmup, 1);
  if (step <= peak || train.steps() <= peak || train.lr_schedule() == v1::LR_SCHEDULE_CONSTANT) {
    return train.lr();
  }
  const double floor = train.min_lr_ratio() * train.lr();
  if (step >= train.steps()) return floor;
  const double progress =
      static_cast<double>(step - peak) / static_cast<double>(train.steps() - peak);
  const double height = train.lr_schedule() == v1::LR_SCHEDULE_LINEAR
                            ? 1.0 - progress
                            : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return floor + (train.lr() - floor) * height;
}

}  // namespace nsa
