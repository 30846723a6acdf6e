#include "common/estimate/health.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A run whose step records a test makes up. Without changes it is healthy: the loss falls, and
// speed, memory and gates stay.
class MadeUpRun {
 public:
  MadeUpRun() { spec_.mutable_model()->set_vocab(256); }

  // Does `steps` steps; `change` edits each record.
  void Do(
      int steps, const std::function<void(v1::StepRecord*)>& change = [](auto*) {}) {
    for (int i = 0; i < steps; ++i) {
      v1::WorkerRecord record;
      v1::StepRecord& step = *record.mutable_step();
      step.set_step(++step_);
      step.set_loss(1 + 4.5 * std::exp(-static_cast<double>(step_) / 5000));
      step.set_tokens_per_second(1000 * (step_ % 2 == 0 ? 1.02 : 0.98));
      step.set_memory_allocated_bytes(int64_t{4} << 30);
      for (int layer = 0; layer < 2; ++layer) {
        v1::LayerStats& stats = *step.add_layers();
        stats.set_layer(layer);
        stats.mutable_gate()->set_entropy_mean(1.0);
        stats.mutable_gate()->set_max_gate_mean(0.5);
        for (const double share : {0.3, 0.3, 0.4}) stats.mutable_gate()->add_branch_share(share);
      }
      change(&step);
      progress_.set_step(step_);
      progress_.set_loss(step.loss());
      *progress_.mutable_gates() = SummaryOfGates(step);
      RememberHealth(record, spec_, progress_.mutable_health_memory());
    }
  }

  void Validate(double loss) {
    v1::WorkerRecord record;
    record.mutable_eval()->set_step(step_);
    record.mutable_eval()->set_loss(loss);
    RememberHealth(record, spec_, progress_.mutable_health_memory());
  }

  void SetTotalSteps(int64_t steps) { progress_.set_total_steps(steps); }

  // The run as a job in this state.
  v1::JobHealth HealthIn(v1::Job::State state) const {
    v1::Job job;
    job.set_state(state);
    *job.mutable_progress() = progress_;
    return HealthOf(job);
  }

  void Restart(int64_t at) {
    step_ = at;
    v1::WorkerRecord record;
    record.mutable_started()->set_resumed_step(at);
    RememberHealth(record, spec_, progress_.mutable_health_memory());
  }

  v1::JobHealth Health() const { return HealthOf(progress_); }
  std::vector<std::string> Problems() const {
    const v1::JobHealth health = Health();
    return {health.problems().begin(), health.problems().end()};
  }
  const v1::JobProgress& progress() const { return progress_; }

 private:
  v1::JobSpec spec_;
  v1::JobProgress progress_;
  int64_t step_ = 0;
};

TEST(Health, OfARunThatLearnsIsGood) {
  MadeUpRun run;
  EXPECT_EQ(run.Health().level(), v1::JobHealth::LEVEL_UNSPECIFIED) << "not known yet";
  run.Do(3000);
  EXPECT_EQ(run.Health().level(), v1::JobHealth::LEVEL_HEALTHY);
  EXPECT_EQ(run.Health().words(), "healthy");
  EXPECT_THAT(run.Problems(), IsEmpty());
}

TEST(Health, ALossAboveAUniformGuessIsBadAfterThreeSteps) {
  MadeUpRun run;
  run.Do(10);
  const auto high = [](v1::StepRecord* step) { step->set_loss(7.11); };
  run.Do(2, high);
  EXPECT_THAT(run.Problems(), IsEmpty());
  run.Do(1, high);
  EXPECT_THAT(run.Problems(), ElementsAre("DIVERGED"));
  EXPECT_EQ(run.Health().level(), v1::JobHealth::LEVEL_BAD);
  EXPECT_THAT(run.Health().words(), HasSubstr("loss 7.11 (a uniform guess has 5.545)"));
  run.Do(1);
  EXPECT_THAT(run.Problems(), IsEmpty()) << "it has recovered";
}

TEST(Health, ALossThatIsNotFiniteIsSaidUntilTheNextGoodStep) {
  MadeUpRun run;
  run.Do(10);
  run.Do(1, [](v1::StepRecord* step) { step->set_skipped_nonfinite(true); });
  EXPECT_THAT(run.Problems(), ElementsAre("NONFINITE"));
  EXPECT_EQ(run.Health().level(), v1::JobHealth::LEVEL_BAD);
  run.Do(1);
  EXPECT_THAT(run.Problems(), IsEmpty());
}

TEST(Health, ALossThatDoesNotFallForAThousandStepsIsAPlateau) {
  MadeUpRun run;
  const auto flat = [](v1::StepRecord* step) { step->set_loss(3 + 0.1 * (step->step() % 2)); };
  run.Do(1000, flat);
  EXPECT_THAT(run.Problems(), IsEmpty());
  run.Do(600, flat);
  EXPECT_THAT(run.Problems(), ElementsAre("PLATEAU"));
  EXPECT_THAT(run.Health().words(), HasSubstr("has not improved for 1,"));
  run.Do(100, [](v1::StepRecord* step) { step->set_loss(2); });
  EXPECT_THAT(run.Problems(), IsEmpty());
}

TEST(Health, APlateauIsANoteAndNotBeforeATwentiethOfTheRun) {
  const auto flat = [](v1::StepRecord* step) { step->set_loss(3); };
  MadeUpRun run;
  run.SetTotalSteps(100'000);
  run.Do(4900, flat);
  EXPECT_THAT(run.Problems(), IsEmpty());
  run.Do(300, flat);
  EXPECT_THAT(run.Problems(), ElementsAre("PLATEAU"));
  EXPECT_EQ(run.Health().level(), v1::JobHealth::LEVEL_HEALTHY);
}

TEST(Health, ARunWhoseValidationsFallIsOnNoPlateau) {
  const auto flat = [](v1::StepRecord* step) { step->set_loss(3); };
  MadeUpRun run;
  for (int i = 0; i < 30; ++i) {
    run.Do(200, flat);
    run.Validate(1.90 - 0.01 * i);
    EXPECT_THAT(run.Problems(), IsEmpty()) << i;
  }
  for (int i = 0; i < 9; ++i) run.Validate(1.9);
  EXPECT_THAT(run.Problems(), IsEmpty());
  run.Validate(std::nan(""));
  EXPECT_THAT(run.Problems(), ElementsAre("PLATEAU"));
  run.Validate(1.5);
  EXPECT_THAT(run.Problems(), IsEmpty());
}

TEST(Health, OfAJobThatDoesNotRunIsOnlyWhatLasts) {
  MadeUpRun slow;
  slow.Do(400);
  slow.Do(140, [](v1::StepRecord* step) { step->set_tokens_per_second(500); });
  EXPECT_THAT(slow.HealthIn(v1::Job::STATE_RUNNING).words(), HasSubstr("tokens a second"));
  for (const auto state : {v1::Job::STATE_FAILED, v1::Job::STATE_SUCCEEDED}) {
    EXPECT_EQ(slow.HealthIn(state).words(), "") << "no cause of how it ended";
    EXPECT_EQ(slow.HealthIn(state).level(), v1::JobHealth::LEVEL_UNSPECIFIED);
  }
  slow.Do(3, [](v1::StepRecord* step) { step->set_loss(9); });
  EXPECT_THAT(slow.HealthIn(v1::Job::STATE_FAILED).problems(), ElementsAre("DIVERGED"));
  EXPECT_EQ(slow.HealthIn(v1::Job::STATE_FAILED).level(), v1::JobHealth::LEVEL_BAD);
}

TEST(Health, ARunThatHadDivergedIsNotGoodAtItsEnd) {
  const auto high = [](v1::StepRecord* step) { step->set_loss(1275); };
  for (const int bad : {20, 150}) {
    MadeUpRun run;
    run.SetTotalSteps(1000);
    run.Do(10);
    run.Do(bad, high);
    run.Do(989 - bad);
    EXPECT_THAT(run.Problems(), IsEmpty()) << "it trains and has recovered";
    run.Do(1);
    const v1::JobHealth health = run.HealthIn(v1::Job::STATE_SUCCEEDED);
    if (bad < 100) {
      EXPECT_EQ(health.words(), "") << "a bad start";
      continue;
    }
    EXPECT_THAT(health.problems(), ElementsAre("HAD_DIVERGED"));
    EXPECT_EQ(health.level(), v1::JobHealth::LEVEL_WARNING);
    EXPECT_EQ(health.words(),
              "the run had diverged, from step 11 to 160 (a uniform guess has 5.545)");
    run.Restart(5);
    run.Do(995);
    EXPECT_THAT(run.Problems(), IsEmpty()) << "from a checkpoint before that";
  }
}

TEST(RecentMean, IsThatOfAllAtFirstAndOfAboutFiftyLater) {
  EXPECT_EQ(RecentMean(0, 5, 1), 5);
  EXPECT_EQ(RecentMean(5, 3, 2), 4);
  EXPECT_NEAR(RecentMean(2, 52, 10'000), 4, 1e-9);
}

TEST(Health, ASpeedOfLessThanNinetyPercentOfItsMedianIsSaid) {
  for (const double factor : {0.8, 0.5}) {
    MadeUpRun run;
    run.Do(400);
    const auto other = [factor](v1::StepRecord* step) {
      step->set_tokens_per_second(factor * step->tokens_per_second());
    };
    run.Do(40, other);
    EXPECT_THAT(run.Problems(), IsEmpty()) << "a short disturbance";
    run.Do(100, other);
    EXPECT_THAT(run.Problems(), ElementsAre("UNSTEADY_SPEED")) << factor;
    EXPECT_THAT(run.Health().words(), HasSubstr(" tokens a second (median "));
  }
  MadeUpRun fast;
  fast.Do(400, [](v1::StepRecord* step) { step->set_tokens_per_second(500000); });
  fast.Do(140, [](v1::StepRecord* step) { step->set_tokens_per_second(300000); });
  EXPECT_THAT(fast.Health().words(), Not(HasSubstr("e+"))) << "no exponents in human-readable text";
  MadeUpRun faster;
  faster.Do(400);
  for (int i = 0; i < 30; ++i) {
    faster.Do(10, [](v1::StepRecord* step) { step->set_tokens_per_second(2000); });
    EXPECT_THAT(faster.Problems(), IsEmpty()) << "faster is no problem";
  }
  MadeUpRun slower;
  slower.Do(400);
  slower.Do(200, [](v1::StepRecord* step) { step->set_tokens_per_second(930); });
  EXPECT_THAT(slower.Problems(), IsEmpty()) << "within ten percent";
}

TEST(Health, ARestartMayHaveAnotherSpeed) {
  MadeUpRun run;
  run.Do(400);
  run.Restart(300);
  run.Do(300, [](v1::StepRecord* step) { step->set_tokens_per_second(5000); });
  EXPECT_THAT(run.Problems(), IsEmpty());
}

TEST(Health, MemoryThatGrowsIsSaid) {
  MadeUpRun run;
  run.Do(200);
  const auto grown = [](int64_t mib) {
    return [mib](v1::StepRecord* step) {
      step->set_memory_allocated_bytes((int64_t{4} << 30) + (mib << 20));
    };
  };
  run.Do(300, grown(180));
  EXPECT_THAT(run.Problems(), IsEmpty());
  run.Do(300, grown(600));
  EXPECT_THAT(run.Problems(), ElementsAre("MEMORY_CREEP"));
  EXPECT_THAT(run.Health().words(), HasSubstr("since the first 200 steps"));
}

TEST(Health, GatesOutsideTheirBoundsAreSaidByRule) {
  const struct {
    const char* word;
    std::function<void(v1::GateStats*)> bad, good;
  } cases[] = {
      {"GATE_ENTROPY", [](v1::GateStats* gate) { gate->set_entropy_mean(0.49); },
       [](v1::GateStats* gate) { gate->set_entropy_mean(0.51); }},
      {"GATE_DOMINANT", [](v1::GateStats* gate) { gate->set_max_gate_mean(0.91); },
       [](v1::GateStats* gate) { gate->set_max_gate_mean(0.89); }},
      {"GATE_SATURATED", [](v1::GateStats* gate) { gate->set_collapse_ratio(0.11); },
       [](v1::GateStats* gate) { gate->set_collapse_ratio(0.09); }},
  };
  for (const auto& one : cases) {
    MadeUpRun run;
    const auto of_layer = [](const std::function<void(v1::GateStats*)>& change) {
      return [change](v1::StepRecord* step) { change(step->mutable_layers(1)->mutable_gate()); };
    };
    run.Do(49, of_layer(one.bad));
    EXPECT_THAT(run.Problems(), IsEmpty()) << one.word;
    run.Do(1, of_layer(one.bad));
    EXPECT_THAT(run.Problems(), ElementsAre(one.word));
    run.Do(60, of_layer(one.good));
    EXPECT_THAT(run.Problems(), IsEmpty()) << one.word;
  }
}

TEST(Health, AModelWithoutAGateHasNoGateProblems) {
  MadeUpRun run;
  run.Do(100, [](v1::StepRecord* step) {
    for (v1::LayerStats& layer : *step->mutable_layers()) layer.clear_gate();
  });
  EXPECT_THAT(run.Problems(), IsEmpty());
  EXPECT_TRUE(run.progress().gates().branch_share().empty());
}

TEST(Health, TheWorstProblemDecidesTheLevelAndComesFirst) {
  MadeUpRun run;
  run.Do(60, [](v1::StepRecord* step) {
    step->mutable_layers(0)->mutable_gate()->set_entropy_mean(0.1);
    if (step->step() > 1) step->set_loss(std::numeric_limits<double>::infinity());
  });
  EXPECT_THAT(run.Problems(), ElementsAre("DIVERGED", "NONFINITE", "GATE_ENTROPY"));
  EXPECT_EQ(run.Health().level(), v1::JobHealth::LEVEL_BAD);
  EXPECT_THAT(run.Health().words(), AllOf(HasSubstr("; "), HasSubstr("layer 0")));
}

TEST(Health, WhatIsRememberedStaysSmall) {
  MadeUpRun run;
  run.Do(20'000, [](v1::StepRecord* step) {
    step->set_tokens_per_second(500 + (step->step() * 7919) % 1000);
  });
  EXPECT_LT(run.progress().health_memory().ByteSizeLong(), 2000u);
}

}  // namespace
}  // namespace nsa
