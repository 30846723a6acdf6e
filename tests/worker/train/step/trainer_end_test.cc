// How a run ends: diverged, stopped early, stopped while its data is read.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/base/fd.h"
#include "common/base/reason.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/step/trainer.h"

namespace nsa::train {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The steps of the checkpoints in the job's out_dir.
std::vector<int64_t> CheckpointSteps(const v1::JobSpec& spec) {
  const auto checkpoints = ListCheckpoints(spec.train().out_dir());
  EXPECT_TRUE(checkpoints.ok()) << checkpoints.status();
  std::vector<int64_t> steps;
  for (const CheckpointEntry& checkpoint : *checkpoints) steps.push_back(checkpoint.step);
  return steps;
}

// A job whose learning rate is far too large.
v1::JobSpec WildJob(const TempDir& dir, double lr) {
  v1::JobSpec spec = Job(dir);
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_lr(lr);
  train.set_warmup_steps(0);
  train.set_lr_schedule(v1::LR_SCHEDULE_CONSTANT);
  train.set_grad_clip(0);
  train.set_weight_decay(0);
  return spec;
}

TEST(Trainer, ARunThatEndsAboveAUniformGuessHasFailed) {
  const TempDir dir;
  const v1::JobSpec spec = WildJob(dir, 1);
  const RankResult result = RunJob(dir, spec)[0];
  ASSERT_EQ(result.steps.size(), 12u) << result.finished.text();
  ASSERT_GT(result.steps.back().loss(), 1.1 * std::log(64.0));
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_EQ(result.finished.reason(), Word(Reason::kDiverged));
  EXPECT_THAT(result.finished.text(), AllOf(HasSubstr("(a uniform guess has 4.159)"),
                                            HasSubstr("nsactl fork job-1 --at-step 0 --set")));
  EXPECT_TRUE(result.HasEvent("DIVERGED"));
  EXPECT_EQ(result.evals.back().step(), 12) << "its end is validated all the same";
  EXPECT_THAT(CheckpointSteps(spec), IsEmpty()) << "a checkpoint of step 5 or 12 is of no use";
}

TEST(Trainer, ARunThatDivergesEndsAndKeepsItsCheckpointsFromBefore) {
  for (const int world : {1, 2}) {
    const TempDir dir;
    v1::JobSpec spec = WildJob(dir, 10);
    spec.mutable_train()->set_steps(400);
    spec.mutable_train()->set_save_every(1);
    spec.mutable_train()->set_eval_every(0);
    spec.mutable_resources()->set_gpus(world);
    for (const RankResult& result : RunJob(dir, spec, {.world = world})) {
      EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
      EXPECT_EQ(result.finished.reason(), Word(Reason::kDiverged));
      EXPECT_EQ(result.finished.step(), 101) << "a hundred steps after the first";
      EXPECT_THAT(result.finished.text(), HasSubstr("nsactl fork job-1 --at-step 1 --set"));
    }
    EXPECT_THAT(CheckpointSteps(spec), ElementsAre(1, 2, 3));
  }
}

TEST(Trainer, ARunThatMayDivergeDoesAllItsSteps) {
  const TempDir dir;
  v1::JobSpec spec = WildJob(dir, 10);
  spec.mutable_train()->set_steps(120);
  spec.mutable_guard()->set_stop_on_divergence(false);
  const RankResult result = RunJob(dir, spec)[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED);
  EXPECT_EQ(result.finished.step(), 120);
  EXPECT_EQ(result.finished.reason(), Word(Reason::kDiverged));
  EXPECT_THAT(result.finished.text(), HasSubstr("all 120 steps done; the run has diverged"));
  EXPECT_THAT(CheckpointSteps(spec), Contains(120));
}

TEST(Trainer, ARunOnRandomTokensHasNotDiverged) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_UNIFORM);
  spec.mutable_train()->set_steps(150);
  const RankResult result = RunJob(dir, spec)[0];
  EXPECT_EQ(result.finished.reason(), Word(Reason::kCompleted)) << result.finished.text();
  EXPECT_FALSE(result.HasEvent("DIVERGED"));
}

TEST(Trainer, ARunThatIsStoppedEarlyIsValidated) {
  const TempDir dir;
  const RankResult result = RunJob(dir, Job(dir), StopAt(6, 0))[0];
  ASSERT_EQ(result.finished.step(), 6) << result.finished.text();
  ASSERT_EQ(result.evals.size(), 2u) << "after steps 4 and 6";
  EXPECT_EQ(result.evals[1].step(), 6);
  const auto state = ReadCheckpointState(CheckpointsDir(dir / "out") / CheckpointName(6));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(ValLossAt(*state), result.evals[1].loss());
}

TEST(Trainer, ARunWithoutValidationIsNotValidatedWhenItIsStopped) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_eval_every(0);
  const RankResult result = RunJob(dir, spec, StopAt(6, 0))[0];
  EXPECT_EQ(result.finished.step(), 6);
  EXPECT_TRUE(result.evals.empty());
}

TEST(Trainer, AStopWhileItsDataIsReadEndsItAtOnce) {
  for (const int world : {1, 2}) {
    const TempDir dir;
    const std::string pipe = dir / "pipe.jsonl";
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    v1::JobSpec spec = Job(dir);
    spec.mutable_data()->set_source(v1::DATA_SOURCE_JSONL);
    spec.mutable_data()->add_path(pipe);
    spec.mutable_data()->set_loader_timeout_seconds(3600);
    spec.mutable_restart()->set_hang_timeout_seconds(3600);
    const Fd silent(open(pipe.c_str(), O_RDWR | O_CLOEXEC));  // readers wait for its first byte
    std::thread asker([&] {
      for (int rank = 0; rank < world; ++rank) {
        AskToStop(RunFolder(dir, {}, rank) / "control.sock");
      }
    });
    const std::vector<RankResult> results = RunJob(dir, spec, {.world = world});
    asker.join();
    for (const RankResult& result : results) {
      EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_STOPPED);
      EXPECT_EQ(result.finished.reason(), Word(Reason::kStopped));
      EXPECT_THAT(result.finished.text(), HasSubstr("while the data was read"));
      EXPECT_TRUE(result.steps.empty());
    }
    EXPECT_FALSE(std::filesystem::exists(dir / "out/training.csv"));
  }
}

}  // namespace
}  // namespace nsa::train
