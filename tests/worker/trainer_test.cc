#include "worker/train/trainer.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "common/checkpoint_dir.h"
#include "tests/testing/precious_folder.h"
#include "tests/testing/within.h"
#include "tests/worker/run_job.h"
#include "tests/worker/tiny_job.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Job(const TempDir& dir, const std::string& out = "out") {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_vocab(64);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_SYNTHETIC);
  spec.mutable_train()->set_batch_size(4);
  spec.mutable_train()->set_steps(12);
  spec.mutable_train()->set_warmup_steps(3);
  spec.mutable_train()->set_eval_every(4);
  spec.mutable_train()->set_eval_batches(2);
  spec.mutable_train()->set_save_every(5);
  spec.mutable_train()->set_out_dir(dir / out);
  return spec;
}

RunOptions StopAt(int64_t step, int asked_rank, int world = 1) {
  return {.world = world, .before = [=](int rank, Trainer* trainer) {
            if (rank != asked_rank) return;
            v1::StopRequest stop;
            stop.set_mode(v1::STOP_MODE_AT_STEP);
            stop.set_at_step(step);
            EXPECT_TRUE(trainer->RequestStop(stop).ok());
          }};
}

// Asks for a graceful stop, once there is somebody to ask.
void AskToStop(const std::filesystem::path& socket) {
  v1::ControlRequest request;
  request.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  for (int attempt = 0; attempt < 3000; ++attempt) {
    const auto reply = ControlCall(socket, request, absl::Seconds(1));
    if (reply.ok()) {
      EXPECT_EQ(reply->error(), "");
      return;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  FAIL() << "nobody listened";
}

std::vector<double> Losses(const RankResult& result) {
  std::vector<double> losses;
  for (const v1::StepRecord& step : result.steps) losses.push_back(step.loss());
  return losses;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Weights(const std::filesystem::path& out_dir, int64_t step) {
  return ReadFile(CheckpointsDir(out_dir) / CheckpointName(step) / "model.safetensors");
}

void FlipAByte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-5, std::ios::end);
  file.put(byte);
}

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

// A validation of 400 forward passes is longer than any step.
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

TEST(Trainer, ResumesBitForBitAfterAStopAtAnyStep) {
  const TempDir dir;
  const RankResult whole = RunJob(dir, Job(dir, "whole"))[0];
  const std::string weights = Weights(dir / "whole", 12);
  for (const int64_t at : {1, 5, 7, 11}) {
    const std::string out = "stopped-" + std::to_string(at);
    const TempDir runs;
    const v1::JobSpec spec = Job(dir, out);
    const RankResult first = RunJob(runs, spec, StopAt(at, 0))[0];
    EXPECT_EQ(first.finished.outcome(), v1::OUTCOME_STOPPED) << first.finished.text();
    EXPECT_EQ(first.finished.reason(), "STOPPED_AT_STEP");
    EXPECT_EQ(first.finished.step(), at);
    const RankResult second = RunJob(runs, spec, {.generation = 2})[0];
    EXPECT_EQ(second.started.resumed_step(), at);
    EXPECT_TRUE(second.HasEvent("RESUMED"));
    std::vector<double> losses = Losses(first);
    for (const double loss : Losses(second)) losses.push_back(loss);
    EXPECT_EQ(losses, Losses(whole)) << "stopped after step " << at;
    EXPECT_EQ(second.evals.back().loss(), whole.evals.back().loss());
    EXPECT_EQ(second.steps.back().total_tokens(), whole.steps.back().total_tokens());
    EXPECT_TRUE(Weights(dir / out, 12) == weights) << "stopped after step " << at;
  }
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
  // The first loss differs by the rounding of means; later ones by what twelve steps of AdamW,
  // whose update of a small gradient is its sign, make of that.
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

// Options of a run whose launch has this stop, on one rank or (-1) on all.
RunOptions LaunchedWith(v1::StopMode mode, int64_t step, RunOptions options = {}, int rank = -1) {
  options.launch = [=](v1::WorkerLaunch* launch) {
    if (rank >= 0 && launch->rank() != rank) return;
    launch->mutable_stop()->set_mode(mode);
    launch->mutable_stop()->set_at_step(step);
  };
  return options;
}

TEST(Trainer, EndsAtExactlyTheStepThatItsLaunchNames) {
  for (const int told : {-1, 0, 1}) {  // the agents of the ranks may hear of it one by one
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

TEST(Trainer, AResumedRunThatIsWhereItShallEndDoesNoFurtherStep) {
  for (const auto& [at, reason] :
       std::map<int64_t, std::string>{{7, "STOPPED_AT_STEP"}, {6, "STOPPED"}}) {
    const TempDir dir;
    RunJob(dir, Job(dir), StopAt(7, 0, 2));
    const auto results = RunJob(
        dir, Job(dir), LaunchedWith(v1::STOP_MODE_AT_STEP, at, {.world = 2, .generation = 2}, 1));
    for (const RankResult& result : results) {
      EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_STOPPED) << result.finished.text();
      EXPECT_EQ(result.finished.reason(), reason);
      EXPECT_EQ(result.finished.step(), 7);
      EXPECT_EQ(result.started.resumed_step(), 7);
      EXPECT_TRUE(result.steps.empty());
      EXPECT_TRUE(result.checkpoints.empty()) << "the one that it came from is there";
    }
    EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(7)).empty());
  }
}

TEST(Trainer, AGracefulStopInTheLaunchDoesOneStepOfANewRunAndNoneOfAResumedOne) {
  const TempDir dir;
  const RankResult fresh = RunJob(dir, Job(dir), LaunchedWith(v1::STOP_MODE_GRACEFUL, 0))[0];
  EXPECT_EQ(fresh.finished.reason(), "STOPPED") << fresh.finished.text();
  EXPECT_EQ(fresh.finished.step(), 1);
  EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(1)).empty());
  const RankResult again =
      RunJob(dir, Job(dir), LaunchedWith(v1::STOP_MODE_GRACEFUL, 0, {.generation = 2}))[0];
  EXPECT_EQ(again.finished.reason(), "STOPPED") << again.finished.text();
  EXPECT_EQ(again.finished.step(), 1);
  EXPECT_TRUE(again.steps.empty());
}

TEST(Trainer, ARunThatEndsWhereAnotherRunsCheckpointBeganHasOneOfItsOwn) {
  const TempDir dir;
  RunJob(dir, Job(dir), StopAt(7, 0));
  v1::JobSpec spec = Job(dir, "other");
  spec.mutable_restart()->set_resume(CheckpointsDir(dir / "out") / CheckpointName(7));
  const TempDir runs;
  const RankResult result = RunJob(runs, spec, LaunchedWith(v1::STOP_MODE_GRACEFUL, 0))[0];
  EXPECT_EQ(result.finished.reason(), "STOPPED") << result.finished.text();
  EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "other") / CheckpointName(7)).empty());
  EXPECT_TRUE(Weights(dir / "other", 7) == Weights(dir / "out", 7));
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
  EXPECT_THAT(zero.finished.text(), HasSubstr("stop: at_step: 0 (1 or more)"));
}

// The checkpoint of step 5 of a run of 12, in `out`.
std::string CheckpointOfStep5(const TempDir& dir) {
  const RankResult first = RunJob(dir, Job(dir))[0];
  EXPECT_EQ(first.finished.outcome(), v1::OUTCOME_COMPLETED);
  return (CheckpointsDir(dir / "out") / "step-00000005").string();
}

RankResult GoOnFrom(const std::string& checkpoint, const TempDir& dir, const std::string& out,
                    const std::function<void(v1::JobSpec*)>& change) {
  v1::JobSpec spec = Job(dir, out);
  spec.mutable_restart()->set_resume(checkpoint);
  change(&spec);
  const TempDir runs;
  return RunJob(runs, spec, {.job_id = out})[0];
}

TEST(Trainer, GoesOnFromAnotherJobsCheckpointWithOtherSettings) {
  const TempDir dir;
  const std::string checkpoint = CheckpointOfStep5(dir);
  const auto same = GoOnFrom(checkpoint, dir, "same", [](v1::JobSpec*) {});
  ASSERT_EQ(same.steps.size(), 7u) << same.finished.text();
  EXPECT_THAT(same.events.at(0).text(), testing::EndsWith("step-00000005")) << "nothing differs";

  const auto slower = GoOnFrom(checkpoint, dir, "slower", [](v1::JobSpec* spec) {
    spec->mutable_train()->set_lr(spec->train().lr() / 2);
  });
  ASSERT_EQ(slower.steps.size(), 7u) << slower.finished.text();
  EXPECT_EQ(slower.steps[0].loss(), same.steps[0].loss()) << "the same weights, on the same data";
  EXPECT_NE(slower.steps[2].loss(), same.steps[2].loss());
  EXPECT_NEAR(slower.steps[0].learning_rate(), same.steps[0].learning_rate() / 2, 1e-12);
  EXPECT_THAT(slower.events.at(0).text(), HasSubstr("which differs in train.lr: "));
  EXPECT_THAT(slower.events.at(0).text(), Not(HasSubstr("the data begins anew")));

  const auto other_data = GoOnFrom(checkpoint, dir, "other", [](v1::JobSpec* spec) {
    spec->mutable_data()->set_source(v1::DATA_SOURCE_UNIFORM);
  });
  ASSERT_EQ(other_data.steps.size(), 7u) << other_data.finished.text();
  EXPECT_NE(other_data.steps[0].loss(), same.steps[0].loss());
  EXPECT_THAT(other_data.events.at(0).text(), HasSubstr("; the data begins anew"));
}

TEST(Trainer, RefusesAnotherJobsCheckpointOfAnotherModelOrBehindItsEnd) {
  const TempDir dir;
  const std::string checkpoint = CheckpointOfStep5(dir);
  const auto wider = GoOnFrom(checkpoint, dir, "wider", [](v1::JobSpec* spec) {
    spec->mutable_nsa()->set_w(spec->nsa().w() * 2);
  });
  EXPECT_EQ(wider.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(wider.finished.text(), HasSubstr("restart.resume: a checkpoint of another model"));
  EXPECT_THAT(wider.finished.text(), HasSubstr("nsa.w: "));
  const auto over = GoOnFrom(checkpoint, dir, "over",
                             [](v1::JobSpec* spec) { spec->mutable_train()->set_steps(5); });
  EXPECT_EQ(over.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(over.finished.text(),
              HasSubstr("a checkpoint of step 5 (less than train.steps, 5); raise train.steps"));
}

TEST(Trainer, ResumesTwoRanksBitForBit) {
  const TempDir dir;
  const RankResult whole = RunJob(dir, Job(dir, "whole"), {.world = 2})[0];
  const TempDir runs;
  const auto first = RunJob(runs, Job(dir, "parts"), StopAt(7, 1, 2));
  const auto second = RunJob(runs, Job(dir, "parts"), {.world = 2, .generation = 2});
  std::vector<double> losses = Losses(first[0]);
  for (const double loss : Losses(second[0])) losses.push_back(loss);
  EXPECT_EQ(losses, Losses(whole));
  EXPECT_TRUE(Weights(dir / "parts", 12) == Weights(dir / "whole", 12));
}

TEST(Trainer, GoesOnAtAnotherWorldSizeUpToTheOrderOfSums) {
  const TempDir dir;
  const RankResult whole = RunJob(dir, Job(dir, "whole"))[0];
  const TempDir runs;
  RunJob(runs, Job(dir, "parts"), StopAt(7, 0, 2));
  const RankResult rest = RunJob(runs, Job(dir, "parts"), {.generation = 2})[0];
  EXPECT_EQ(rest.started.resumed_step(), 7) << rest.finished.text();
  ASSERT_EQ(rest.steps.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(rest.steps[i].loss(), whole.steps[7 + i].loss(), 1e-3) << i;
  }
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
  // The first update throws every weight to 1e30; from then on nothing is finite.
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
}

TEST(Trainer, GoesBackToTheLastGoodCheckpointAndSaysWhy) {
  const TempDir dir;
  const v1::JobSpec spec = Job(dir);
  RunJob(dir, spec);
  FlipAByte(CheckpointsDir(dir / "out") / CheckpointName(12) / "model.safetensors");
  const RankResult again = RunJob(dir, spec, {.generation = 2})[0];
  EXPECT_EQ(again.finished.outcome(), v1::OUTCOME_COMPLETED) << again.finished.text();
  EXPECT_EQ(again.started.resumed_step(), 10);
  EXPECT_TRUE(again.HasEvent("CHECKPOINT_CORRUPT"));

  for (const int64_t step : {5, 10, 12}) {
    FlipAByte(CheckpointsDir(dir / "out") / CheckpointName(step) / "model.safetensors");
  }
  const RankResult lost = RunJob(dir, spec, {.generation = 3})[0];
  EXPECT_EQ(lost.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_EQ(lost.finished.reason(), "NO_VALID_CHECKPOINT") << lost.finished.text();
}

// As the coordinator restarts a job that has published a checkpoint.
RunOptions RestartAfter(const TempDir& dir, int64_t step, int64_t generation) {
  return {.world = 2, .generation = generation, .launch = [&dir, step](v1::WorkerLaunch* launch) {
            const auto checkpoint = CheckpointsDir(dir / "out") / CheckpointName(step);
            launch->mutable_spec()->mutable_restart()->set_resume(checkpoint.string());
          }};
}

TEST(Trainer, ARestartWithoutTheCheckpointsThatWerePublishedBeginsNothing) {
  const TempDir dir;
  const v1::JobSpec spec = Job(dir);
  RunJob(dir, spec, StopAt(7, 0, 2));
  std::filesystem::rename(dir / "out", dir / "moved");
  const auto expect_refused = [&](int64_t generation) {
    for (const RankResult& lost : RunJob(dir, spec, RestartAfter(dir, 7, generation))) {
      EXPECT_EQ(lost.finished.outcome(), v1::OUTCOME_FAILED) << "it may come back";
      EXPECT_EQ(lost.finished.reason(), "CHECKPOINTS_MISSING");
      EXPECT_THAT(lost.finished.text(),
                  HasSubstr((dir / "out").string() +
                            " has no checkpoint (step-00000007 was published there); mount"));
      EXPECT_TRUE(lost.steps.empty());
    }
  };
  expect_refused(2);
  EXPECT_FALSE(std::filesystem::exists(dir / "out")) << "nothing is made where a volume belongs";
  std::filesystem::create_directory(dir / "out");  // a mount point
  expect_refused(3);
  EXPECT_TRUE(std::filesystem::is_empty(dir / "out"));

  std::filesystem::remove(dir / "out");
  std::filesystem::rename(dir / "moved", dir / "out");
  const RankResult back = RunJob(dir, spec, RestartAfter(dir, 7, 4))[0];
  EXPECT_EQ(back.finished.outcome(), v1::OUTCOME_COMPLETED) << back.finished.text();
  EXPECT_EQ(back.started.resumed_step(), 7);
}

TEST(Trainer, ARestartTakesItsNewestCheckpointWhicheverOneWasToldOf) {
  const TempDir dir;
  RunJob(dir, Job(dir), StopAt(7, 0, 2));
  // The last one published is gone or damaged, or a newer one was not told any more.
  for (const int64_t told : {6, 20}) {
    const RankResult result = RunJob(dir, Job(dir), RestartAfter(dir, told, told))[0];
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
    EXPECT_EQ(result.started.resumed_step(), told == 6 ? 7 : 12);
  }
}

TEST(Trainer, DoesNotMixANewRunWithCheckpointsOfAnOldOne) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  RunJob(dir, spec, StopAt(2, 0));
  spec.mutable_restart()->set_resume("never");
  const TempDir runs;
  const RankResult never = RunJob(runs, spec)[0];
  EXPECT_EQ(never.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(never.finished.text(), HasSubstr("has 1 checkpoints"));
  const TempDir others;
  const RankResult other = RunJob(others, Job(dir), {.job_id = "job-2"})[0];
  EXPECT_EQ(other.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(other.finished.text(), HasSubstr("belongs to job job-1"));
}

TEST(Trainer, AStartThatIsRefusedLeavesTheFilesOfTheRunThatOwnsThemAlone) {
  const TempDir dir;
  RunJob(dir, Job(dir), StopAt(2, 0));
  const auto content = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(dir / "out")) {
      if (entry.is_regular_file()) files[entry.path().filename()] = ReadFile(entry.path());
    }
    return files;
  };
  const auto before = content();
  ASSERT_TRUE(before.contains("metrics.json"));
  const TempDir others, again;
  EXPECT_THAT(RunJob(others, Job(dir), {.job_id = "job-2"})[0].finished.text(),
              HasSubstr("belongs to job job-1"));
  EXPECT_EQ(content(), before);
  // A worker of this job that lives on, in a gang that was given up.
  const auto holder = CheckpointWriter::Open({.out_dir = *Folder::Make(dir / "out")});
  ASSERT_TRUE(holder.ok());
  EXPECT_THAT(RunJob(again, Job(dir))[0].finished.text(), HasSubstr("being trained into"));
  EXPECT_EQ(content(), before);
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

// A job that runs until it is asked to stop, and saves all the time.
v1::JobSpec EndlessJob(const TempDir& dir) {
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_steps(1'000'000'000);
  spec.mutable_restart()->set_hang_timeout_seconds(60);  // so that a failure of the test ends it
  spec.mutable_train()->set_log_every(1);
  return spec;
}

bool HasCheckpointAfter(const std::filesystem::path& out_dir, int64_t step) {
  const auto entries = ListCheckpoints(out_dir);
  return entries.ok() && !entries->empty() && entries->back().step > step;
}

// out_dir, or the checkpoints in it, becomes a link to somebody else's folder while two ranks
// train, and is put back: that costs the checkpoints meanwhile, which is told, and nothing else.
TEST(Trainer, AFolderExchangedForALinkCostsCheckpointsUntilItIsPutBack) {
  for (const std::string exchanged : {"out", "out/checkpoints"}) {
    const TempDir dir;
    const PreciousFolder precious(dir / "precious");
    const RunOptions options{.world = 2};
    const auto journal = RunFolder(dir, options, 0) / "journal";
    std::thread somebody([&] {
      EXPECT_TRUE(Within(absl::Seconds(60), [&] { return HasCheckpointAfter(dir / "out", 0); }));
      precious.TakeThePlaceOf(dir / exchanged);
      EXPECT_TRUE(Within(absl::Seconds(60),
                         [&] { return ReadJournal(journal).HasEvent("CHECKPOINT_FAILED"); }));
      precious.GiveBack(dir / exchanged);
      const RankResult now = ReadJournal(journal);
      EXPECT_TRUE(Within(absl::Seconds(60), [&] {
        return HasCheckpointAfter(dir / "out", now.checkpoints.back().step());
      }));
      AskToStop(RunFolder(dir, options, 0) / "control.sock");
    });
    const auto results = RunJob(dir, EndlessJob(dir), options);
    somebody.join();
    precious.ExpectUntouched();
    for (const RankResult& result : results) {
      EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_STOPPED) << result.finished.text();
    }
    const int64_t last = results[0].finished.step();
    EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(last)).empty());
    std::string told;
    for (const RankResult& result : results) {
      for (const v1::WorkerEvent& event : result.events) told += event.text() + "\n";
    }
    EXPECT_THAT(told, HasSubstr(exchanged + ": no longer the folder"));
    const std::string rows = ReadFile(dir / "out/training.csv");
    EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 1 + last) << "the header, and every step";
  }
}

// Nobody can point latest.ckpt anywhere while this is there.
class NoCheckpointCanBeFinished {
 public:
  explicit NoCheckpointCanBeFinished(const std::filesystem::path& out_dir)
      : obstacle_(CheckpointsDir(out_dir) / "latest.ckpt.tmp") {
    std::filesystem::create_directories(obstacle_);
  }
  void End() const { std::filesystem::remove(obstacle_); }

 private:
  const std::filesystem::path obstacle_;
};

// The texts of a rank's CHECKPOINT_FAILED events.
std::vector<std::string> Failures(const RankResult& result) {
  std::vector<std::string> texts;
  for (const v1::WorkerEvent& event : result.events) {
    if (event.reason() == "CHECKPOINT_FAILED") texts.push_back(event.text());
  }
  return texts;
}

TEST(Trainer, TheLastCheckpointIsTriedAgainUntilItCanBeWritten) {
  for (const bool asked : {false, true}) {
    const TempDir dir;
    const NoCheckpointCanBeFinished obstacle(dir / "out");
    v1::JobSpec spec = asked ? EndlessJob(dir) : Job(dir);
    spec.mutable_train()->set_save_every(0);
    const RunOptions options{
        .world = 2,
        .last_save = {.first_wait = absl::Milliseconds(20), .longest_wait = absl::Seconds(1)}};
    const auto folder = RunFolder(dir, options, 0);
    std::thread somebody([&] {
      if (asked) AskToStop(folder / "control.sock");
      EXPECT_TRUE(Within(absl::Seconds(60), [&] {
        return std::filesystem::exists(folder / "journal") &&
               Failures(ReadJournal(folder / "journal")).size() >= 3;
      }));
      const auto page = ReadStatusPage(RunDir{folder}.status());
      EXPECT_TRUE(page.ok()) << page.status();
      // Alive while it waits.
      EXPECT_TRUE(Within(absl::Seconds(60), [&] {
        const auto now = ReadStatusPage(RunDir{folder}.status());
        return page.ok() && now.ok() && now->progress > page->progress;
      }));
      EXPECT_EQ(ReadJournal(folder / "journal").finished.reason(), "") << "nothing is given up";
      obstacle.End();
    });
    const auto results = RunJob(dir, spec, options);
    somebody.join();
    for (const RankResult& result : results) {
      EXPECT_EQ(result.finished.outcome(), asked ? v1::OUTCOME_STOPPED : v1::OUTCOME_COMPLETED)
          << result.finished.text();
    }
    const std::vector<std::string> failures = Failures(results[0]);
    ASSERT_GE(failures.size(), 3u);
    EXPECT_THAT(failures[0], HasSubstr("free space or fix the folder, it is tried again in 20ms"));
    EXPECT_THAT(failures[1], HasSubstr("it is tried again in 40ms"));
    const int64_t last = results[0].finished.step();
    EXPECT_TRUE(VerifyCheckpoint(CheckpointsDir(dir / "out") / CheckpointName(last)).empty());
    EXPECT_EQ(results[0].checkpoints.back().step(), last);
    EXPECT_EQ(results[0].checkpoints.back().error(), "");
  }
}

TEST(Trainer, PatienceWithTheLastCheckpointEnds) {
  const TempDir dir;
  const NoCheckpointCanBeFinished obstacle(dir / "out");
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_save_every(0);
  const absl::Duration brief = absl::Milliseconds(1);
  const auto results = RunJob(
      dir, spec,
      {.world = 2, .last_save = {.first_wait = brief, .longest_wait = brief, .total = 3 * brief}});
  for (const RankResult& result : results) {
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED);
    EXPECT_EQ(result.finished.reason(), "CHECKPOINT_FAILED") << result.finished.text();
  }
  const std::vector<std::string> failures = Failures(results[0]);
  ASSERT_EQ(failures.size(), 4u) << "and three repetitions";
  EXPECT_THAT(failures[2], HasSubstr("it is tried again in 1ms"));
  EXPECT_THAT(failures[3], HasSubstr("it is not tried again"));
}

TEST(WaitAfter, DoublesUpToTheLongestAndEndsWithPatience) {
  const LastSavePatience patience;
  absl::Duration waited;
  int failures = 1;
  for (; const auto wait = WaitAfter(failures, patience); ++failures) {
    const absl::Duration doubled = patience.first_wait * (failures <= 5 ? 1 << (failures - 1) : 16);
    EXPECT_EQ(*wait, std::min(doubled, patience.longest_wait));
    waited += *wait;
  }
  EXPECT_LE(waited, patience.total);
  EXPECT_GT(waited + patience.longest_wait, patience.total);
}

// Somebody exchanges folders and files as fast as they can, until a good many checkpoints have been
// written or refused.
TEST(Trainer, WritesThroughNoLinkWhateverMomentItComesAt) {
  const TempDir dir;
  const PreciousFolder precious(dir / "precious");
  v1::JobSpec spec = EndlessJob(dir);
  spec.mutable_train()->set_save_every(1);
  spec.mutable_train()->set_eval_every(1);
  const std::filesystem::path out = dir / "out";
  int folders = 0, files = 0;
  // Puts a link in the place of `path` for a moment.
  const auto exchange = [&](const std::filesystem::path& target,
                            const std::filesystem::path& path) {
    const std::filesystem::path link = dir / ("link-" + std::to_string(folders + files));
    std::filesystem::create_symlink(target, link);
    const auto swap = [&] {
      return renameat2(AT_FDCWD, link.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0;
    };
    const bool swapped = swap();
    if (swapped) swap();
    std::filesystem::rename(link, dir / "used");  // it may be a folder that was not given back
    std::filesystem::remove_all(dir / "used");
    return swapped;
  };
  std::thread somebody([&] {
    EXPECT_TRUE(Within(absl::Seconds(60), [&] { return HasCheckpointAfter(out, 0); }));
    EXPECT_TRUE(Within(absl::Seconds(60), [&] {
      for (int round = 0; round < 20; ++round) {
        const auto newest = ListCheckpoints(out);
        const int64_t next = newest.ok() && !newest->empty() ? newest->back().step + 1 : 1;
        const auto temporary = CheckpointsDir(out) / (CheckpointName(next) + ".tmp-1");
        for (const auto& path : {out, CheckpointsDir(out), temporary}) {
          folders += exchange(precious.path(), path);
        }
        for (const char* name : {"metrics.json", "training.csv"}) {
          files += exchange(precious.path() / name, out / name);
        }
        std::error_code taken;
        std::filesystem::create_symlink(precious.path() / "metrics.json", out / "metrics.json.tmp",
                                        taken);
      }
      return ReadJournal(RunFolder(dir, {}, 0) / "journal").checkpoints.size() > 40;
    }));
    AskToStop(RunFolder(dir, {}, 0) / "control.sock");
  });
  RunJob(dir, spec);
  somebody.join();
  precious.ExpectUntouched();
  EXPECT_GT(folders, 80);
  EXPECT_GT(files, 40);
}

TEST(Trainer, SaysWhyItCannotUseItsOutDirThoughThereIsNoFileToSayItIn) {
  const TempDir dir;
  std::ofstream(dir / "out") << "a file";
  const RankResult result = RunJob(dir, Job(dir))[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(result.finished.text(), HasSubstr("train.out_dir: " + (dir / "out").string()));

  const TempDir other;
  const PreciousFolder precious(other / "precious");
  std::filesystem::create_directory(other / "out");
  std::filesystem::create_symlink(precious.path() / "training.csv", other / "out/training.csv");
  const RankResult linked = RunJob(other, Job(other))[0];
  EXPECT_EQ(linked.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(linked.finished.text(), HasSubstr("out/training.csv: leads through a symbolic link"));
  precious.ExpectUntouched();
}

TEST(EndingOf, TellsWhatARestartCanHelp) {
  EXPECT_EQ(EndingOf(absl::UnavailableError("x: PEER_LOST: y")).outcome, v1::OUTCOME_FAILED);
  EXPECT_EQ(EndingOf(absl::UnavailableError("CHECKPOINTS_MISSING: x")).outcome, v1::OUTCOME_FAILED);
  EXPECT_EQ(EndingOf(absl::DeadlineExceededError("DATA_STALLED")).reason, "DATA_STALLED");
  EXPECT_EQ(EndingOf(absl::NotFoundError("data.path")).outcome, v1::OUTCOME_FAILED_FINAL);
  EXPECT_EQ(EndingOf(absl::InternalError("x")).reason, "INTERNAL");
  EXPECT_EQ(ExitCodeOf(v1::OUTCOME_STOPPED), 0);
  EXPECT_EQ(ExitCodeOf(v1::OUTCOME_FAILED), 1);
  EXPECT_EQ(ExitCodeOf(v1::OUTCOME_FAILED_FINAL), 3);
}

}  // namespace
}  // namespace nsa
