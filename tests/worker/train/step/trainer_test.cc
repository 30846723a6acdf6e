#include "worker/train/step/trainer.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "tests/testing/within.h"
#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

using ::testing::HasSubstr;

TEST(Trainer, TrainsToTheLastStepAndReportsEachOnce) {
  const TempDir dir;
  const v1::JobSpec spec = Job(dir);
  const RankResult result = RunJob(dir, spec)[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  EXPECT_EQ(result.finished.step(), 12);
  EXPECT_EQ(result.started.parameters(), ParameterLayout(spec).count());
  ASSERT_EQ(result.steps.size(), 12u);
  for (int64_t i = 0; i < 12; ++i) {
    const v1::StepRecord& step = result.steps[i];
    EXPECT_EQ(step.step(), i + 1);
    EXPECT_EQ(step.tokens(), 4 * 24);
    EXPECT_EQ(step.total_tokens(), (i + 1) * 4 * 24);
    EXPECT_GT(step.grad_norm(), 0);
    EXPECT_EQ(step.layers_size(), 2);
    EXPECT_EQ(step.data_source(), v1::DATA_SOURCE_SYNTHETIC);
    EXPECT_GT(step.times().step_seconds(), 0);
    EXPECT_GT(step.memory_allocated_bytes(), 1 << 20);
  }
  EXPECT_NEAR(result.steps[0].loss(), std::log(64.0), 0.1);
  EXPECT_EQ(result.steps.back().learning_rate(), 1e-2 * 0.1);
  ASSERT_EQ(result.evals.size(), 3u) << "after steps 4, 8 and 12";
  EXPECT_EQ(result.evals[2].tokens(), 2 * 4 * 24);
  EXPECT_LT(result.evals[2].loss(), result.evals[0].loss());
  ASSERT_EQ(result.checkpoints.size(), 3u) << "after steps 5, 10 and 12";
  for (const int64_t step : {5, 10, 12}) {
    EXPECT_TRUE(
        VerifyCheckpoint(CheckpointsDir(spec.train().out_dir()) / CheckpointName(step)).empty());
  }
}

TEST(Trainer, AuditsTheAttentionEverySoManyStepsWithoutChangingABit) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_accumulate_grad_batches(2);
  spec.mutable_nsa()->set_audit_every(5);
  const RankResult audited = RunJob(dir, spec)[0];
  ASSERT_EQ(audited.steps.size(), 12u) << audited.finished.text();
  for (const v1::StepRecord& step : audited.steps) {
    for (const v1::LayerStats& layer : step.layers()) {
      EXPECT_EQ(layer.has_audit(), step.step() % 5 == 0) << step.step();
      EXPECT_EQ(layer.audit().selected_mass() > 0.5, layer.has_audit()) << step.step();
    }
  }
  const TempDir other;
  spec.mutable_nsa()->set_audit_every(0);
  spec.mutable_train()->set_out_dir(other / "out");
  const RankResult plain = RunJob(other, spec)[0];
  for (const v1::StepRecord& step : plain.steps) EXPECT_FALSE(step.layers(0).has_audit());
  EXPECT_EQ(Losses(audited), Losses(plain));
  EXPECT_EQ(Weights(dir / "out", 12), Weights(other / "out", 12));
}

TEST(Trainer, RepeatsItsFirstStepWithTheSameBitsAndWritesNothing) {
  const TempDir dir;
  const RealClock clock;
  TrainerOptions options;
  options.clock = &clock;
  *options.launch.mutable_spec() = Job(dir);
  options.launch.set_generation(1);
  options.launch.set_world_size(1);
  options.launch.set_cpu_threads(1);
  const absl::StatusOr<std::string> checked = Trainer(std::move(options)).CheckDeterminism();
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(*checked, HasSubstr("deterministic: 4 times the first step"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
}

// A validation with 400 forward passes takes longer than any step.
TEST(Trainer, ValidationIsNoPartOfTheNextStepsTime) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_eval_batches(400);
  const RankResult result = RunJob(dir, spec)[0];
  ASSERT_EQ(result.evals.size(), 3u);
  ASSERT_EQ(result.steps.size(), 12u);
  for (const size_t eval : {0, 1}) {
    EXPECT_LT(result.steps[4 * (eval + 1)].times().step_seconds(), result.evals[eval].seconds());
  }
}

// A clock with which what the trainer does in a phase takes 100 s or more, and the rest of a step
// no time. The trainer reads the clock `readings` times in this phase; the second of them ends what
// takes long.
class SlowPhase final : public Clock {
 public:
  SlowPhase(std::filesystem::path page, Phase phase, int readings)
      : page_(std::move(page)), phase_(phase), all_(readings) {}
  absl::Time Wall() const override { return clock_.Wall(); }
  absl::Duration Monotonic() const override {
    const auto page = ReadStatusPage(page_);
    if (page.ok() && page->phase == phase_ && ++readings_ % all_ == 2 % all_) {
      passed_ += absl::Seconds(100);
    }
    return clock_.Monotonic() + passed_;
  }

 private:
  const RealClock clock_;
  const std::filesystem::path page_;
  const Phase phase_;
  const int all_;
  mutable int readings_ = 0;
  mutable absl::Duration passed_;
};

TEST(Trainer, TheThroughputGuardDoesNotCountValidations) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_eval_every(1);
  spec.mutable_guard()->set_min_tokens_per_second(1);
  spec.mutable_guard()->set_after_steps(1);
  const SlowPhase clock(RunFolder(dir, {}, 0) / "status", Phase::kEval, 2);
  const RankResult result = RunJob(dir, spec, {.clock = &clock})[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  ASSERT_EQ(result.evals.size(), 12u);
  for (const v1::EvalRecord& eval : result.evals) EXPECT_GE(eval.seconds(), 100);
}

// The clock is read when an audit begins, when it ends, and when the step ends.
TEST(Trainer, AnAuditIsNoPartOfAStepsTime) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_nsa()->set_audit_every(1);
  const SlowPhase clock(RunFolder(dir, {}, 0) / "status", Phase::kTelemetry, 3);
  const absl::Duration began = clock.Monotonic();
  const RankResult result = RunJob(dir, spec, {.clock = &clock})[0];
  ASSERT_EQ(result.steps.size(), 12u) << result.finished.text();
  EXPECT_GE(clock.Monotonic() - began, absl::Seconds(1200));  // the audits were slow
  for (const v1::StepRecord& step : result.steps) {
    EXPECT_LT(step.times().step_seconds(), 100) << step.step();
  }
}

// The status page shows progress while large files are read, so hang detection does not fire.
TEST(Trainer, ShowsOnItsStatusPageThatItsDataIsStillBeingRead) {
  const TempDir dir;
  const std::string pipe = dir / "pipe.jsonl";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  v1::JobSpec spec = Job(dir);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_JSONL);
  spec.mutable_data()->add_path(pipe);
  spec.mutable_train()->set_steps(1);
  std::thread writer([&] {
    std::ofstream out(pipe);  // blocks until the reader opens it
    const auto page = [&] { return ReadStatusPage(RunFolder(dir, {}, 0) / "status"); };
    for (int line = 0; line < 3; ++line) {
      const auto before = page();
      EXPECT_TRUE(before.ok()) << before.status();
      if (!before.ok()) return;
      EXPECT_EQ(before->phase, Phase::kData);
      out << "{\"text\": \"01234567890123456789 01234567890123456789\"}" << std::endl;
      const bool moved = Within(absl::Seconds(60), [&] {
        const auto now = page();
        return now.ok() && now->progress > before->progress;
      });
      EXPECT_TRUE(moved) << "line " << line;
      if (!moved) return;
    }
  });
  const RankResult result = RunJob(dir, spec)[0];
  writer.join();
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
}

TEST(Trainer, KeepsItsStatusPageCurrentToTheEnd) {
  const TempDir dir;
  RunJob(dir, Job(dir));
  const auto status = ReadStatusPage(RunFolder(dir, {}, 0) / "status");
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->phase, Phase::kFinished);
  EXPECT_EQ(status->step, 12);
  EXPECT_EQ(status->layer, -1);
  EXPECT_EQ(status->kernel, "") << "the last collective came after the last kernel";
  EXPECT_GE(status->collective_sequence, 2 * 12);
}

TEST(Trainer, GivesTheSameBitsEveryTimeAndOnEveryRank) {
  const TempDir a, b;
  const auto first = RunJob(a, Job(a), {.world = 2}), second = RunJob(b, Job(b), {.world = 2});
  ASSERT_EQ(first[0].finished.outcome(), v1::OUTCOME_COMPLETED) << first[0].finished.text();
  EXPECT_EQ(Losses(first[0]), Losses(second[0]));
  EXPECT_TRUE(Weights(a / "out", 12) == Weights(b / "out", 12));
  EXPECT_EQ(Losses(first[0]), Losses(first[1]));
  for (size_t i = 0; i < first[0].steps.size(); ++i) {
    EXPECT_EQ(first[0].steps[i].grad_norm(), first[1].steps[i].grad_norm());
  }
  for (size_t i = 0; i < first[0].evals.size(); ++i) {
    EXPECT_EQ(first[0].evals[i].loss(), first[1].evals[i].loss());
  }
}

TEST(Trainer, TrainsTheSameOnTwoRanksAsOnOneUpToTheOrderOfSums) {
  const TempDir one, two;
  const RankResult single = RunJob(one, Job(one))[0];
  const RankResult pair = RunJob(two, Job(two), {.world = 2})[0];
  ASSERT_EQ(pair.steps.size(), single.steps.size()) << pair.finished.text();
  // The first loss differs only by the rounding of means. Twelve steps of AdamW, whose update for a
  // small gradient depends on its sign, amplify the difference.
  EXPECT_NEAR(pair.steps[0].loss(), single.steps[0].loss(), 1e-6);
  EXPECT_NEAR(pair.steps[0].grad_norm(), single.steps[0].grad_norm(),
              1e-5 * single.steps[0].grad_norm());
  for (size_t i = 0; i < single.steps.size(); ++i) {
    EXPECT_NEAR(pair.steps[i].loss(), single.steps[i].loss(), 1e-3) << i;
  }
}

TEST(Trainer, AccumulatesMicroBatchesIntoTheGradientOfTheirMean) {
  const TempDir one, two;
  v1::JobSpec accumulated = Job(two);
  accumulated.mutable_train()->set_batch_size(2);
  accumulated.mutable_train()->set_accumulate_grad_batches(2);
  const RankResult whole = RunJob(one, Job(one))[0], halves = RunJob(two, accumulated)[0];
  ASSERT_EQ(halves.steps.size(), 12u) << halves.finished.text();
  EXPECT_EQ(halves.steps[0].tokens(), whole.steps[0].tokens());
  EXPECT_NEAR(halves.steps[0].loss(), whole.steps[0].loss(), 1e-6);
  EXPECT_NEAR(halves.steps[0].grad_norm(), whole.steps[0].grad_norm(),
              1e-5 * whole.steps[0].grad_norm());
  EXPECT_EQ(halves.steps[0].layers(0).selection().rows(),
            whole.steps[0].layers(0).selection().rows());
}

TEST(Trainer, StopsTwoRanksAfterTheSameStepWhenOneIsAsked) {
  for (const int asked : {0, 1}) {
    const TempDir dir;
    const auto results = RunJob(dir, Job(dir), StopAt(7, asked, 2));
    for (const RankResult& result : results) {
      EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_STOPPED) << result.finished.text();
      EXPECT_EQ(result.finished.step(), 7);
      EXPECT_EQ(result.steps.size(), 7u);
    }
    EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(7)).empty());
  }
}

TEST(Trainer, EndsAtExactlyTheStepThatItsLaunchNames) {
  // Agents may receive a stop at different times: all ranks (-1) or only one of them know it.
  for (const int told : {-1, 0, 1}) {
    const TempDir dir;
    const auto results =
        RunJob(dir, Job(dir), LaunchedWith(v1::STOP_MODE_AT_STEP, 1, {.world = 2}, told));
    for (const RankResult& result : results) {
      EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_STOPPED) << result.finished.text();
      EXPECT_EQ(result.finished.reason(), "STOPPED_AT_STEP");
      EXPECT_EQ(result.finished.step(), 1);
      EXPECT_EQ(result.steps.size(), 1u);
    }
    EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(1)).empty());
  }
}

TEST(Trainer, AStopOnTheControlSocketReplacesTheOneInTheLaunch) {
  const TempDir dir;
  RunOptions options = LaunchedWith(v1::STOP_MODE_AT_STEP, 1000000);
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_steps(1000000);
  spec.mutable_train()->set_save_every(0);
  spec.mutable_train()->set_eval_every(0);
  std::thread asker([&] { AskToStop(RunDir{RunFolder(dir, {}, 0)}.control()); });
  const RankResult result = RunJob(dir, spec, options)[0];
  asker.join();
  EXPECT_EQ(result.finished.reason(), "STOPPED") << result.finished.text();
  EXPECT_LT(result.finished.step(), 1000000);
}

TEST(Trainer, RefusesALaunchWhoseStopMakesNoSense) {
  const TempDir dir;
  const RankResult zero = RunJob(dir, Job(dir), LaunchedWith(v1::STOP_MODE_AT_STEP, 0))[0];
  EXPECT_EQ(zero.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(zero.finished.text(), HasSubstr("stop: at_step: 0 (at least 1)"));
}

TEST(Trainer, StopsWhenTheControlSocketAsks) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_steps(1000000);
  spec.mutable_train()->set_save_every(0);
  spec.mutable_train()->set_eval_every(0);
  std::thread asker([&] { AskToStop(RunDir{RunFolder(dir, {}, 0)}.control()); });
  const RankResult result = RunJob(dir, spec)[0];
  asker.join();
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_STOPPED) << result.finished.text();
  EXPECT_EQ(result.finished.reason(), "STOPPED");
  const int64_t step = result.finished.step();
  EXPECT_GE(step, 1);
  EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(step)).empty());
}

TEST(Trainer, SkipsNonFiniteStepsAndThenStopsAllRanksTogether) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  // The first update changes every weight to about 1e30; after that no loss is finite.
  spec.mutable_train()->set_lr(1e30);
  spec.mutable_train()->set_warmup_steps(0);
  spec.mutable_guard()->set_max_consecutive_nonfinite(2);
  const auto results = RunJob(dir, spec, {.world = 2});
  for (const RankResult& result : results) {
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
    EXPECT_EQ(result.finished.reason(), "NONFINITE_LOSS") << result.finished.text();
    ASSERT_EQ(result.steps.size(), 4u) << "one good step, two skipped ones and one too many";
    EXPECT_FALSE(result.steps[0].skipped_nonfinite());
    EXPECT_TRUE(result.steps[1].skipped_nonfinite());
    EXPECT_TRUE(result.HasEvent("NONFINITE_SKIPPED"));
  }
}

TEST(Trainer, EndsWithACheckpointWhenTheDataEnds) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  std::ofstream(dir / "train.txt") << std::string(24 * 40, 'a') << std::string(500, 'b');
  std::ofstream(dir / "val.txt") << std::string(24 * 9, 'b');
  spec.mutable_model()->set_vocab(256);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  spec.mutable_data()->add_path(dir / "train.txt");
  spec.mutable_data()->add_val_path(dir / "val.txt");
  spec.mutable_data()->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
  spec.mutable_train()->set_steps(100);
  const auto results = RunJob(dir, spec, {.world = 2});
  for (const RankResult& result : results) {
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
    EXPECT_EQ(result.finished.reason(), "DATA_EXHAUSTED");
    EXPECT_EQ(result.finished.step(), 15) << "60 rows of 24 tokens, 4 a step";
  }
  EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(15)).empty());
  for (const RankResult& again : RunJob(dir, spec, {.world = 2, .generation = 2})) {
    EXPECT_EQ(again.finished.reason(), "DATA_EXHAUSTED") << again.finished.text();
    EXPECT_TRUE(again.steps.empty());
  }
}

// A rank that cannot read its files continues with synthetic tokens, which never end.
TEST(Trainer, AllRanksEndWithTheDataThoughOneHasFallenBack) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  std::ofstream(dir / "train.txt") << std::string(24 * 60, '0');
  spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  spec.mutable_data()->add_path(dir / "train.txt");
  spec.mutable_data()->set_on_exhausted(v1::ON_EXHAUSTED_STOP);
  spec.mutable_data()->set_allow_synthetic_fallback(true);
  spec.mutable_train()->set_steps(100);
  spec.mutable_restart()->set_hang_timeout_seconds(60);  // so that a failing test ends
  const RunOptions options{.world = 2, .launch = [&](v1::WorkerLaunch* launch) {
                             if (launch->rank() == 0) return;
                             auto* data = launch->mutable_spec()->mutable_data();
                             data->set_path(0, dir / "missing.txt");
                           }};
  const auto results = RunJob(dir, spec, options);
  EXPECT_TRUE(results[1].HasEvent("FALLBACK"));
  for (const RankResult& result : results) {
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
    EXPECT_EQ(result.finished.reason(), "DATA_EXHAUSTED");
    EXPECT_EQ(result.finished.step(), 15) << "60 rows of 24 tokens, 4 a step";
    EXPECT_EQ(result.steps.size(), 15u);
  }
}

TEST(Trainer, FailsWithPeerLostWhenARankDoesNotCome) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_restart()->set_hang_timeout_seconds(0.3);
  const RealClock clock;
  TrainerOptions options{.run_dir = RunDir{dir / "run"}, .clock = &clock};
  std::filesystem::create_directories(dir / "run");
  *options.launch.mutable_spec() = spec;
  options.launch.set_world_size(2);
  options.launch.set_rendezvous_dir(dir / "rendezvous");
  options.launch.set_cpu_threads(1);
  const v1::WorkerFinished finished = Trainer(std::move(options)).Run();
  EXPECT_EQ(finished.outcome(), v1::OUTCOME_FAILED);
  EXPECT_EQ(finished.reason(), "PEER_LOST") << finished.text();
  EXPECT_EQ(ReadJournal(dir / "run" / "journal").finished.reason(), "PEER_LOST");
}

TEST(EndingOf, TellsWhatARestartCanHelp) {
  const auto ending = [](absl::StatusCode code, Reason reason) {
    return EndingOf(Annotate(ReasonError(code, reason, "y"), "x"));
  };
  using Code = absl::StatusCode;
  EXPECT_EQ(ending(Code::kUnavailable, Reason::kPeerLost).outcome, v1::OUTCOME_FAILED);
  EXPECT_EQ(ending(Code::kUnavailable, Reason::kPeerLost).text, "x: PEER_LOST: y");
  EXPECT_EQ(ending(Code::kUnavailable, Reason::kCheckpointsMissing).outcome, v1::OUTCOME_FAILED);
  EXPECT_EQ(ending(Code::kUnavailable, Reason::kOutDirBusy).reason, "OUT_DIR_BUSY");
  EXPECT_EQ(ending(Code::kDeadlineExceeded, Reason::kDataStalled).reason, "DATA_STALLED");
  EXPECT_EQ(ending(Code::kOutOfRange, Reason::kDataExhausted).outcome, v1::OUTCOME_FAILED_FINAL);
  EXPECT_EQ(ending(Code::kDataLoss, Reason::kNoValidCheckpoint).outcome, v1::OUTCOME_FAILED_FINAL);
  EXPECT_EQ(EndingOf(absl::NotFoundError("data.path")).outcome, v1::OUTCOME_FAILED_FINAL);
  EXPECT_EQ(EndingOf(absl::InternalError("x")).reason, "INTERNAL");
  EXPECT_EQ(EndingOf(absl::InternalError("x")).outcome, v1::OUTCOME_FAILED);
  // The text of an error has no influence on the reason.
  EXPECT_EQ(EndingOf(absl::InternalError("PEER_LOST: x")).reason, "INTERNAL");
}

}  // namespace
}  // namespace nsa::train
