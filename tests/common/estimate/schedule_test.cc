#include "common/estimate/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nsa {
namespace {

v1::TrainSpec Train(v1::LrSchedule schedule, int64_t steps, int64_t warmup, double min_ratio) {
  v1::TrainSpec train;
  train.set_lr_schedule(schedule);
  train.set_steps(steps);
  train.set_warmup_steps(warmup);
  train.set_lr(2e-4);
  train.set_min_lr_ratio(min_ratio);
  return train;
}

TEST(Schedule, WarmsUpInAStraightLineToThePeak) {
  const v1::TrainSpec train = Train(v1::LR_SCHEDULE_COSINE, 1000, 100, 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(train, 1), 2e-6);
  EXPECT_DOUBLE_EQ(LearningRate(train, 50), 1e-4);
  EXPECT_DOUBLE_EQ(LearningRate(train, 100), 2e-4);
  EXPECT_LT(LearningRate(train, 101), 2e-4);
}

TEST(Schedule, EndsExactlyAtItsFloorAtTheLastStep) {
  for (const int64_t warmup : {0, 1, 7, 400}) {
    for (const auto schedule :
         {v1::LR_SCHEDULE_COSINE, v1::LR_SCHEDULE_LINEAR, v1::LR_SCHEDULE_WSD}) {
      const v1::TrainSpec train = Train(schedule, 1000, warmup, 0.1);
      EXPECT_EQ(LearningRate(train, 1000), 0.1 * 2e-4) << warmup;
      EXPECT_GT(LearningRate(train, 999), 0.1 * 2e-4) << warmup;
      EXPECT_EQ(LearningRate(train, 1001), 0.1 * 2e-4) << warmup;
    }
  }
}

TEST(Schedule, IsHalfWayDownInTheMiddle) {
  for (const auto schedule : {v1::LR_SCHEDULE_COSINE, v1::LR_SCHEDULE_LINEAR}) {
    const v1::TrainSpec train = Train(schedule, 1100, 100, 0.5);
    EXPECT_NEAR(LearningRate(train, 600), 1.5e-4, 1e-18);
  }
}

TEST(Schedule, NeverRisesAfterWarmUp) {
  for (const auto schedule : {v1::LR_SCHEDULE_COSINE, v1::LR_SCHEDULE_LINEAR,
                              v1::LR_SCHEDULE_CONSTANT, v1::LR_SCHEDULE_WSD}) {
    const v1::TrainSpec train = Train(schedule, 300, 20, 0.0);
    for (int64_t step = 21; step <= 300; ++step) {
      EXPECT_LE(LearningRate(train, step), LearningRate(train, step - 1)) << step;
    }
  }
}

TEST(Schedule, StaysAtThePeakWhenConstant) {
  EXPECT_EQ(LearningRate(Train(v1::LR_SCHEDULE_CONSTANT, 100, 0, 0.1), 100), 2e-4);
}

TEST(Schedule, WsdFallsInAStraightLineOverItsLastSteps) {
  v1::TrainSpec train = Train(v1::LR_SCHEDULE_WSD, 1000, 100, 0.1);
  train.set_decay_steps(400);
  EXPECT_EQ(LearningRate(train, 100), 2e-4);
  EXPECT_EQ(LearningRate(train, 600), 2e-4);
  EXPECT_NEAR(LearningRate(train, 800), 0.55 * 2e-4, 1e-18);
  EXPECT_EQ(LearningRate(train, 1000), 0.1 * 2e-4);
  train.clear_decay_steps();
  EXPECT_EQ(DecaySteps(train), 200);
  EXPECT_EQ(LearningRate(train, 800), 2e-4);
  EXPECT_LT(LearningRate(train, 801), 2e-4);
}

// More steps at the peak change nothing of what was done, which is what this schedule is for.
TEST(Schedule, WsdWithMoreStepsIsTheSameUntilItFalls) {
  const v1::TrainSpec some = Train(v1::LR_SCHEDULE_WSD, 1000, 100, 0.1);
  const v1::TrainSpec more = Train(v1::LR_SCHEDULE_WSD, 5000, 100, 0.1);
  for (int64_t step = 1; step <= 800; ++step) {
    EXPECT_EQ(LearningRate(some, step), LearningRate(more, step)) << step;
  }
}

TEST(Schedule, WsdNeverFallsBeforeTheWarmUpEnds) {
  v1::TrainSpec train = Train(v1::LR_SCHEDULE_WSD, 100, 60, 0.0);
  train.set_decay_steps(100);
  EXPECT_EQ(LearningRate(train, 60), 2e-4);
  EXPECT_NEAR(LearningRate(train, 80), 1e-4, 1e-18);
  EXPECT_EQ(LearningRate(train, 100), 0.0);
}

TEST(Schedule, StartsAtThePeakWithoutWarmUp) {
  EXPECT_EQ(LearningRate(Train(v1::LR_SCHEDULE_COSINE, 100, 0, 0.1), 1), 2e-4);
  EXPECT_EQ(LearningRate(Train(v1::LR_SCHEDULE_COSINE, 1, 0, 0.1), 1), 2e-4);
}

// The old system divided the number of optimizer steps by the number of micro-steps: with two
// micro-batches per step its cosine ended at 53 % of the peak.
TEST(Schedule, DoesNotKnowMicroSteps) {
  v1::TrainSpec train = Train(v1::LR_SCHEDULE_COSINE, 25000, 2000, 0.0);
  train.set_accumulate_grad_batches(2);
  EXPECT_EQ(LearningRate(train, 25000), 0.0);
}

}  // namespace
}  // namespace nsa
