#include "worker/train/telemetry/guards.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Optional;
using testing::SizeIs;

// Gives the guard `steps` steps of `tokens` tokens that take `seconds` each. Returns the first
// error, if any.
class SimulatedRun {
 public:
  explicit SimulatedRun(ThroughputGuard guard) : guard_(std::move(guard)) {}
  std::optional<std::string> Steps(int steps, int64_t tokens, double seconds) {
    for (int i = 0; i < steps; ++i) {
      if (auto why = guard_.Observe(tokens, absl::Seconds(seconds))) return why;
    }
    return std::nullopt;
  }

 private:
  ThroughputGuard guard_;
};

TEST(DivergenceGuard, SaysThatALossAboveAUniformGuessHasDiverged) {
  DivergenceGuard guard(256);  // ln 256 = 5.545
  EXPECT_EQ(guard.Observe(1, 5.56), std::nullopt);
  EXPECT_EQ(guard.Observe(2, 41), std::nullopt);
  EXPECT_EQ(guard.Observe(3, 12), std::nullopt);
  EXPECT_THAT(
      guard.Observe(4, 9.25),
      Optional(std::string(
          "the run has diverged: loss 9.25 at step 4, at best 5.56 at step 1 (a uniform guess has "
          "5.545), the third such step in a row; lower train.lr or lengthen train.warmup_steps")));
  EXPECT_EQ(guard.Observe(5, 7.11), std::nullopt) << "reported once";
  EXPECT_THAT(guard.verdict(), Optional(HasSubstr("loss 7.11")));
  EXPECT_EQ(guard.Observe(6, 5.5), std::nullopt);
  EXPECT_EQ(guard.verdict(), std::nullopt) << "it has recovered";
}

TEST(DivergenceGuard, KeepsQuietAboutTheFirstStepsAndASingleBadBatch) {
  DivergenceGuard wide(256);  // large models begin a little above ln V
  EXPECT_EQ(wide.Observe(1, 6.4), std::nullopt);
  EXPECT_EQ(wide.verdict(), std::nullopt);
  for (int step = 2; step < 20; ++step) EXPECT_EQ(wide.Observe(step, 6.45), std::nullopt);
  DivergenceGuard spike(256);
  for (int step = 1; step < 30; ++step) {
    EXPECT_EQ(spike.Observe(step, step % 3 == 0 ? 9 : 3), std::nullopt);
  }
  EXPECT_EQ(spike.verdict(), std::nullopt);
}

TEST(DivergenceGuard, ComparesAResumedRunWithAUniformGuessAlone) {
  DivergenceGuard guard(256);
  guard.Observe(101, 9);
  guard.Observe(102, 9);
  EXPECT_NE(guard.Observe(103, 9), std::nullopt);
}

TEST(DivergenceGuard, ALossThatIsNotFiniteIsWorseThanAGuess) {
  DivergenceGuard guard(256);
  guard.Observe(1, 5.5);
  guard.Observe(2, std::nan(""));
  EXPECT_THAT(guard.verdict(), Optional(HasSubstr("loss nan")));
}

// The largest number of bad steps up to any step, of a run whose loss at a step is `loss`.
int MostBadSteps(const std::function<double(int64_t)>& loss, int64_t from = 1, int64_t to = 2000) {
  DivergenceGuard guard(256, from);
  int most = 0;
  for (int64_t step = from; step <= to; ++step) {
    guard.Observe(step, loss(step));
    most = std::max(most, guard.bad_steps());
  }
  return most;
}

// A number of [−1, 1], another one each step.
double Noise(int64_t step) { return std::sin(static_cast<double>(step * step)); }

TEST(DivergenceGuard, CountsNoStepOfARunThatLearns) {
  const auto learns = [](int64_t step) {
    return 3 + 2.6 * std::exp(-static_cast<double>(step) / 100) + 0.3 * Noise(step);
  };
  EXPECT_LT(MostBadSteps(learns), DivergenceGuard::kSteps);
}

TEST(DivergenceGuard, CountsNoStepOfARunOnRandomTokens) {
  EXPECT_EQ(MostBadSteps([](int64_t step) { return 5.6 + 0.15 * Noise(step); }), 0);
  EXPECT_EQ(MostBadSteps([](int64_t step) { return step == 1 ? 8 : 8.2; }), 0) << "nor of another";
}

TEST(DivergenceGuard, CountsFewStepsOfAMixtureWithASetOfRandomTokens) {
  EXPECT_LE(MostBadSteps([](int64_t step) { return step % 3 == 0 ? 2.1 : 5.56; }), 0);
  EXPECT_LE(MostBadSteps([](int64_t step) { return step > 50 && step % 7 < 2 ? 5.56 : 2.1; }), 2);
}

// A model may be confident, and wrong, about the data that it is tuned on.
TEST(DivergenceGuard, CountsNoStepOfAFineTuneThatBeginsAboveAGuess) {
  const auto tunes = [](int64_t step) {
    return 2 + 6 * std::exp(-static_cast<double>(step - 5000) / 200);
  };
  EXPECT_EQ(MostBadSteps(tunes, 5001, 7000), 0);
  EXPECT_EQ(MostBadSteps([&](int64_t step) { return tunes(step + 5000); }), 0);
}

TEST(DivergenceGuard, ForgivesABadStartThatTheRunRecoversFrom) {
  const auto recovers = [](int64_t step) { return step > 1 && step < 72 ? 20.0 : 5.0; };
  EXPECT_LT(MostBadSteps(recovers), DivergenceGuard::kStopSteps);
  DivergenceGuard guard(256);
  for (int64_t step = 1; step < 79; ++step) guard.Observe(step, recovers(step));
  EXPECT_EQ(guard.bad_steps(), 0);
}

TEST(DivergenceGuard, CountsTheStepsOfARunThatBlewUp) {
  DivergenceGuard guard(256);
  for (int64_t step = 1; step <= 200; ++step) {
    guard.Observe(step, step < 101 ? 5.6 - 0.02 * static_cast<double>(step) : 187);
  }
  EXPECT_EQ(guard.bad_steps(), DivergenceGuard::kStopSteps);
  EXPECT_EQ(guard.since(), 101);
  EXPECT_THAT(guard.verdict(),
              Optional(HasSubstr("loss 187 at step 200, at best 3.6 at step 100")));
  guard.Observe(201, 5.0);  // a single better step
  EXPECT_EQ(guard.bad_steps(), DivergenceGuard::kStopSteps - DivergenceGuard::kRelief);
  EXPECT_EQ(guard.verdict(), std::nullopt);
}

TEST(DivergenceGuard, CountsTheStepsOfARunThatForgotWhatItKnew) {
  const auto forgets = [](int64_t step) { return step <= 300 ? 4.0 : 5.55; };
  EXPECT_GE(MostBadSteps(forgets), DivergenceGuard::kStopSteps);
  const auto never_knew = [](int64_t step) { return step <= 300 ? 5.2 : 5.55; };
  EXPECT_EQ(MostBadSteps(never_knew), 0);
}

TEST(DivergenceAdvice, NamesTheCommandThatBeginsAgain) {
  v1::TrainSpec train;
  train.set_lr(2e-4);
  EXPECT_EQ(DivergenceAdvice(train, "j1", 400),
            "lower train.lr or lengthen train.warmup_steps; begin again from the checkpoint of "
            "step 400: nsactl fork j1 --at-step 400 --set train.lr=0.0001");
  train.set_muon_lr(0.02);
  EXPECT_THAT(DivergenceAdvice(train, "j1", 0),
              HasSubstr("from step 0: nsactl fork j1 --at-step 0 --set train.lr=0.0001 --set "
                        "train.muon_lr=0.01"));
  EXPECT_THAT(DivergenceAdvice(train, "", 400), Not(HasSubstr("nsactl")));
}

TEST(ThroughputGuard, FailsAfterAMinuteBelowTheFloor) {
  SimulatedRun run(ThroughputGuard(1000, 0));
  EXPECT_EQ(run.Steps(59, 999, 1), std::nullopt);
  EXPECT_THAT(run.Steps(1, 999, 1),
              Optional(AllOf(HasSubstr("999 tokens a second"),
                             HasSubstr("guard.min_tokens_per_second: 1000"))));
}

TEST(ThroughputGuard, OneStepAtTheFloorStartsTheMinuteAnew) {
  SimulatedRun run(ThroughputGuard(1000, 0));
  EXPECT_EQ(run.Steps(59, 500, 1), std::nullopt);
  EXPECT_EQ(run.Steps(1, 1000, 1), std::nullopt);
  EXPECT_EQ(run.Steps(59, 500, 1), std::nullopt);
  EXPECT_NE(run.Steps(1, 500, 1), std::nullopt);
}

TEST(ThroughputGuard, DoesNotLookWhileTheRunWarmsUp) {
  SimulatedRun run(ThroughputGuard(1000, 100));
  EXPECT_EQ(run.Steps(100, 1, 10), std::nullopt);
  EXPECT_EQ(run.Steps(5, 1, 10), std::nullopt);
  EXPECT_NE(run.Steps(1, 1, 10), std::nullopt);
}

TEST(ThroughputGuard, ForgivesOneLongStep) {
  SimulatedRun run(ThroughputGuard(1000, 0));
  EXPECT_EQ(run.Steps(10, 2000, 1), std::nullopt);
  EXPECT_EQ(run.Steps(1, 2000, 500), std::nullopt);
  EXPECT_EQ(run.Steps(10, 2000, 1), std::nullopt);
}

TEST(ThroughputGuard, ZeroTurnsItOff) {
  SimulatedRun run(ThroughputGuard(0, 0));
  EXPECT_EQ(run.Steps(1000, 0, 10), std::nullopt);
}

TEST(ThroughputGuard, WithoutAFloorTakesAThirdOfTheFirstMinutesSpeed) {
  SimulatedRun run(ThroughputGuard(std::nullopt, 100));
  EXPECT_EQ(run.Steps(100, 1, 10), std::nullopt) << "warming up";
  EXPECT_EQ(run.Steps(60, 3000, 1), std::nullopt);
  EXPECT_EQ(run.Steps(1000, 1000, 1), std::nullopt) << "at the floor";
  EXPECT_EQ(run.Steps(59, 999, 1), std::nullopt);
  EXPECT_THAT(run.Steps(1, 999, 1),
              Optional(AllOf(HasSubstr("999 tokens a second"), HasSubstr("1000, a third"))));
}

TEST(ThroughputGuard, MeasuresAtLeastThreeSteps) {
  SimulatedRun run(ThroughputGuard(std::nullopt, 0));
  EXPECT_EQ(run.Steps(1, 3000, 100), std::nullopt);
  EXPECT_EQ(run.Steps(2, 300000, 100), std::nullopt);
  EXPECT_EQ(run.Steps(2, 60000, 100), std::nullopt) << "two steps below 670 a second";
  EXPECT_NE(run.Steps(1, 60000, 100), std::nullopt);
}

TEST(NonfiniteGuard, ToleratesTheAllowedNumberInARow) {
  NonfiniteGuard guard(2, 0);
  EXPECT_EQ(guard.Observe(1, false), std::nullopt);
  EXPECT_EQ(guard.Observe(2, false), std::nullopt);
  EXPECT_EQ(guard.consecutive(), 2);
  EXPECT_EQ(guard.Observe(3, true), std::nullopt);
  EXPECT_EQ(guard.consecutive(), 0);
  EXPECT_EQ(guard.Observe(4, false), std::nullopt);
  EXPECT_EQ(guard.Observe(5, false), std::nullopt);
  EXPECT_THAT(guard.Observe(6, false), Optional(HasSubstr("3 steps up to step 6")));
}

TEST(NonfiniteGuard, GoesOnCountingAfterAResume) {
  NonfiniteGuard guard(2, 2);
  EXPECT_THAT(guard.Observe(101, false), Optional(HasSubstr("3 steps")));
}

std::vector<v1::LayerStats> Layers(const std::vector<double>& shares) {
  std::vector<v1::LayerStats> layers(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    layers[i].set_layer(static_cast<int32_t>(i));
    layers[i].mutable_gate()->set_collapse_ratio(shares[i]);
  }
  return layers;
}

// Gives the guard steps with these shares from `step` on. Returns its events.
std::vector<std::string> Collapse(GateCollapseGuard* guard, int64_t* step, int steps,
                                  const std::vector<double>& shares) {
  std::vector<std::string> events;
  for (int i = 0; i < steps; ++i) {
    if (auto text = guard->Observe(++*step, Layers(shares))) events.push_back(*text);
  }
  return events;
}

TEST(GateCollapseGuard, WarnsAboutALayerWhoseMeanIsAboveTheLimit) {
  GateCollapseGuard guard(0.5);
  int64_t step = 0;
  EXPECT_THAT(Collapse(&guard, &step, 49, {0.1, 0.6}), IsEmpty());
  EXPECT_THAT(Collapse(&guard, &step, 1, {0.1, 0.6}),
              ElementsAre(AllOf(HasSubstr("at step 50: layer 1: 0.600 (guard"),
                                Not(HasSubstr("layer 0")))));
  EXPECT_THAT(Collapse(&guard, &step, 5000, {0.1, 0.9}), IsEmpty()) << "it has not fallen";
  EXPECT_THAT(Collapse(&guard, &step, 5000, {0.1, 0.3}), IsEmpty()) << "not below 0.25";
  EXPECT_THAT(Collapse(&guard, &step, 5000, {0.1, 0.9}), IsEmpty());
  EXPECT_THAT(Collapse(&guard, &step, 500, {0.1, 0.1}), IsEmpty());
  EXPECT_THAT(Collapse(&guard, &step, 500, {0.1, 0.9}),
              ElementsAre(HasSubstr("; again, 1 time since step 50")));
  EXPECT_THAT(Collapse(&guard, &step, 500, {0.9, 0.9}), ElementsAre(HasSubstr("layer 0: 0.5")));
}

TEST(GateCollapseGuard, ASingleStepIsNoCollapse) {
  GateCollapseGuard guard(0.5);
  int64_t step = 0;
  Collapse(&guard, &step, 200, {0.1});
  EXPECT_THAT(Collapse(&guard, &step, 10, {1.0}), IsEmpty());
  EXPECT_THAT(Collapse(&guard, &step, 10, {std::nan("")}), IsEmpty());
}

// A gate that wavers wrote 2,356 events in 200,000 steps.
TEST(GateCollapseGuard, ALayerThatComesAndGoesHasFewEventsThatCount) {
  GateCollapseGuard guard(0.5);
  int64_t step = 0;
  std::vector<std::string> events;
  while (step < 200'000) {
    for (const double share : {0.9, 0.1}) {
      for (std::string& text : Collapse(&guard, &step, 200, {share})) {
        events.push_back(std::move(text));
      }
    }
  }
  EXPECT_THAT(events, SizeIs(AllOf(testing::Ge(5u), testing::Le(9u))));
  EXPECT_THAT(events[1], HasSubstr("; again, 3 times since step 50"));
  EXPECT_THAT(events.back(), HasSubstr("times since step"));
}

TEST(Recurrence, PausesGrowWhileItComesAndGoesAndAreShortAgainAfterwards) {
  Recurrence thing;
  std::vector<int64_t> steps;
  const auto happen = [&](int64_t step) {
    thing.Count();
    if (!thing.Due(step)) return;
    thing.Said(step);
    steps.push_back(step);
  };
  for (int64_t step = 10; step <= 8010; step += 100) happen(step);
  EXPECT_THAT(steps, ElementsAre(10, 1010, 3010, 7010));
  for (const int64_t step : {30'000, 30'500, 31'000}) happen(step);
  EXPECT_THAT(steps, ElementsAre(10, 1010, 3010, 7010, 30'000, 31'000));
}

TEST(NonfiniteGuard, EveryOtherStepHasFewEvents) {
  NonfiniteGuard guard(2, 0);
  int events = 0;
  for (int64_t step = 1; step <= 100'000; ++step) {
    if (const auto text = guard.Skipped(step, step % 2 == 0)) {
      EXPECT_EQ(*text == "", events == 0) << *text;
      ++events;
    }
  }
  EXPECT_LE(events, 8);
  EXPECT_GE(events, 5);
}

TEST(DivergenceGuard, ALossThatWaversAroundTheLimitHasFewEvents) {
  DivergenceGuard guard(256);
  std::vector<std::string> events;
  for (int64_t step = 1; step <= 100'000; ++step) {
    if (auto text = guard.Observe(step, step % 10 >= 5 ? 7.0 : 5.5)) events.push_back(*text);
  }
  ASSERT_THAT(events, SizeIs(AllOf(testing::Ge(5u), testing::Le(9u))));
  EXPECT_THAT(events[1], HasSubstr("; again, 100 times since step 7;"));
}

}  // namespace
}  // namespace nsa::train
