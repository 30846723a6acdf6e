#include "worker/train/step/step_guards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "common/base/reason.h"
#include "tests/testing/temp_dir.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

class StepGuardsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto reporter = Reporter::Open({.journal = dir_ / "journal"});
    ASSERT_TRUE(reporter.ok()) << reporter.status();
    reporter_ = *std::move(reporter);
  }

  static v1::StepRecord Record(int64_t step, double seconds) {
    v1::StepRecord record;
    record.set_step(step);
    record.set_tokens(100);
    record.mutable_times()->set_step_seconds(seconds);
    return record;
  }

  TempDir dir_;
  std::unique_ptr<Reporter> reporter_;
};

TEST_F(StepGuardsTest, EndsARunWithMoreNonFiniteStepsInARowThanAllowed) {
  v1::JobSpec spec;
  spec.mutable_guard()->set_max_consecutive_nonfinite(2);
  StepGuards guards(spec, /*consecutive_nonfinite=*/1);
  const Agreement nonfinite = {.finite = false};
  EXPECT_FALSE(guards.Observe(Record(1, 1), nonfinite, reporter_.get()).has_value());
  EXPECT_EQ(guards.consecutive_nonfinite(), 2);
  const std::optional<Ending> ending = guards.Observe(Record(2, 1), nonfinite, reporter_.get());
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->outcome, v1::OUTCOME_FAILED_FINAL);
  EXPECT_EQ(ending->reason, Word(Reason::kNonfiniteLoss));
}

TEST_F(StepGuardsTest, TellsOthersThatItIsTooSlowAndEndsOnceAllAgree) {
  v1::JobSpec spec;
  spec.mutable_guard()->set_min_tokens_per_second(1000);
  StepGuards guards(spec, 0);
  for (int step = 1; step <= 3; ++step) {
    EXPECT_FALSE(guards.too_slow());
    EXPECT_FALSE(guards.Observe(Record(step, 30), {}, reporter_.get()).has_value());
  }
  EXPECT_TRUE(guards.too_slow());
  const std::optional<Ending> ending =
      guards.Observe(Record(4, 30), {.too_slow = true}, reporter_.get());
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(ending->reason, Word(Reason::kThroughputTooLow));
  EXPECT_THAT(ending->text, HasSubstr("guard.min_tokens_per_second"));
}

// The first minute is fast, the next one a hundred times slower.
TEST_F(StepGuardsTest, WithoutAFloorAGpuJobIsHeldToItsFirstMinuteAndACpuJobToNothing) {
  for (const auto device : {v1::DEVICE_CUDA, v1::DEVICE_CPU}) {
    v1::JobSpec spec;
    spec.mutable_runtime()->set_device(device);
    StepGuards guards(spec, 0);
    for (int step = 1; step <= 70; ++step) guards.Observe(Record(step, 1), {}, reporter_.get());
    EXPECT_FALSE(guards.too_slow());
    for (int step = 71; step <= 73; ++step) guards.Observe(Record(step, 100), {}, reporter_.get());
    EXPECT_EQ(guards.too_slow(), device == v1::DEVICE_CUDA);
  }
}

// How a run ends that begins at a loss of 5 and then has one of 187, with a vocabulary of 256.
TEST_F(StepGuardsTest, EndsARunThatHasDivergedForAHundredStepsAfterItsWarmUp) {
  v1::JobSpec spec;
  spec.mutable_model()->set_vocab(256);
  for (const int64_t warmup : {0, 150}) {
    spec.mutable_train()->set_warmup_steps(warmup);
    StepGuards guards(spec, 0);
    std::optional<Ending> ending;
    int64_t step = 0;
    while (!ending && step < 200) {
      v1::StepRecord record = Record(++step, 1);
      record.set_loss(step == 1 ? 5 : 187);
      ending = guards.Observe(record, {}, reporter_.get());
      EXPECT_EQ(guards.diverging(), step > 3);
    }
    EXPECT_EQ(step, warmup == 0 ? 101 : 151);
    ASSERT_TRUE(ending.has_value());
    EXPECT_EQ(ending->outcome, v1::OUTCOME_FAILED_FINAL);
    EXPECT_EQ(ending->reason, Word(Reason::kDiverged));
    EXPECT_EQ(guards.diverging_since(), 2);
  }
}

TEST_F(StepGuardsTest, JudgesTheEndOfARunByItsLastTenSteps) {
  for (const int64_t bad : {9, 10}) {
    v1::JobSpec spec;
    spec.mutable_model()->set_vocab(256);
    StepGuards guards(spec, 0);
    for (int64_t step = 1; step <= 1 + bad; ++step) {
      v1::StepRecord record = Record(step, 1);
      record.set_loss(step == 1 ? 5 : 187);
      EXPECT_FALSE(guards.Observe(record, {}, reporter_.get()).has_value());
    }
    EXPECT_EQ(guards.ObserveEnd().has_value(), bad == 10);
    const Ending ending = guards.Judge({v1::OUTCOME_COMPLETED, Word(Reason::kCompleted), "done"});
    EXPECT_EQ(ending.reason, Word(Reason::kDiverged)) << "it is said in any case";
  }
}

TEST_F(StepGuardsTest, ARunMayGoOnAlthoughItHasDiverged) {
  v1::JobSpec spec;
  spec.mutable_model()->set_vocab(256);
  spec.mutable_guard()->set_stop_on_divergence(false);
  StepGuards guards(spec, 0);
  for (int64_t step = 1; step <= 300; ++step) {
    v1::StepRecord record = Record(step, 1);
    record.set_loss(step == 1 ? 5 : 187);
    EXPECT_FALSE(guards.Observe(record, {}, reporter_.get()).has_value());
  }
  EXPECT_FALSE(guards.diverging()) << "its checkpoints are saved";
  EXPECT_FALSE(guards.ObserveEnd().has_value());
}

TEST_F(StepGuardsTest, NamesAnotherRankWhenOnlyThatOneIsTooSlow) {
  StepGuards guards(v1::JobSpec(), 0);
  const std::optional<Ending> ending =
      guards.Observe(Record(1, 1), {.too_slow = true}, reporter_.get());
  ASSERT_TRUE(ending.has_value());
  EXPECT_THAT(ending->text, HasSubstr("another rank"));
}

}  // namespace
}  // namespace nsa::train
