// How a run resumes from its own checkpoints and from those of another job.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_dir.h"
#include "nlohmann/json.hpp"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/step/trainer.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

void FlipAByte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-5, std::ios::end);
  file.put(byte);
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

// Path of the checkpoint of step 5 of a run of 12 steps in `out`.
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

// The original run validated after step 4, on a separate text. The fork does not validate.
TEST(Trainer, AForkKeepsItsPlaceAndItsBestValidationOnlyOnTheSameData) {
  const TempDir dir;
  {
    std::ofstream text(dir / "text");
    for (int line = 0; line < 20000; ++line) text << "0123456789 " << line * line << "\n\n";
  }
  const auto on_text = [&](v1::JobSpec* spec) {
    spec->mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
    spec->mutable_data()->add_path(dir / "text");
    spec->mutable_data()->set_val_fraction(0.2);
  };
  v1::JobSpec origin = Job(dir);
  on_text(&origin);
  ASSERT_EQ(RunJob(dir, origin)[0].finished.outcome(), v1::OUTCOME_COMPLETED);
  const std::string checkpoint = (CheckpointsDir(dir / "out") / CheckpointName(5)).string();
  ASSERT_EQ(ReadCheckpointState(checkpoint)->best_val_step(), 4);

  struct Case {
    std::string name;
    std::function<void(v1::JobSpec*)> change;
    bool same_place, same_validation;
  };
  for (const Case& c : std::vector<Case>{
           {"lr", [](auto* spec) { spec->mutable_train()->set_lr(1e-3); }, true, true},
           {"seed", [](auto* spec) { spec->mutable_train()->set_seed(8); }, false, false},
           {"val_fraction", [](auto* spec) { spec->mutable_data()->set_val_fraction(0.4); }, false,
            false},
           {"mask", [](auto* spec) { spec->mutable_data()->set_document_mask(true); }, true,
            false}}) {
    const auto fork = GoOnFrom(checkpoint, dir, c.name, [&](v1::JobSpec* spec) {
      on_text(spec);
      spec->mutable_train()->set_eval_every(0);
      c.change(spec);
    });
    ASSERT_EQ(fork.finished.outcome(), v1::OUTCOME_COMPLETED) << fork.finished.text();
    const std::string text = fork.events.at(0).text();
    EXPECT_EQ(text.find("; the data begins anew") == std::string::npos, c.same_place) << text;
    const auto state = ReadCheckpointState(CheckpointsDir(dir / c.name) / CheckpointName(12));
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->best_val_step(), c.same_validation ? 4 : 0) << c.name;
    EXPECT_EQ(state->data().sequence(), 4 * (c.same_place ? 12 : 7)) << c.name;
  }
}

TEST(Trainer, TheBestValidationBeforeARestartStaysInTheMetrics) {
  const TempDir dir;
  const RankResult first = RunJob(dir, Job(dir), StopAt(5, 0))[0];
  ASSERT_EQ(first.evals.size(), 1u);
  RunJob(dir, Job(dir), LaunchedWith(v1::STOP_MODE_AT_STEP, 6, {.generation = 2}));
  const auto metrics = nlohmann::json::parse(ReadFile(dir / "out/metrics.json"));
  EXPECT_EQ(metrics["step"], 6);
  EXPECT_EQ(metrics["val_best_step"], 4);
  EXPECT_EQ(metrics["val_loss_best"], first.evals[0].loss());
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

// Options with which the coordinator restarts a job that has published a checkpoint.
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

TEST(Trainer, ACheckpointSaysWhatItsJobWasSubmittedWith) {
  const TempDir dir;
  RunJob(dir, Job(dir), StopAt(7, 0, 2));
  RunOptions restart = RestartAfter(dir, 7, 2);
  restart.launch = [told = restart.launch](v1::WorkerLaunch* launch) {
    told(launch);
    launch->set_submitted_resume("auto");
  };
  EXPECT_EQ(RunJob(dir, Job(dir), restart)[0].started.resumed_step(), 7);
  const auto state = ReadCheckpointState(CheckpointsDir(dir / "out") / CheckpointName(12));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->spec().restart().resume(), "auto");
}

TEST(Trainer, ARestartTakesItsNewestCheckpointWhicheverOneWasToldOf) {
  const TempDir dir;
  RunJob(dir, Job(dir), StopAt(7, 0, 2));
  // restart.resume names a checkpoint older than the newest one, or one that does not exist.
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

}  // namespace
}  // namespace nsa
