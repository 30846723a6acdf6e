// How a run resumes from its own checkpoints.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_dir.h"
#include "nlohmann/json.hpp"
#include "tests/worker/train/data/data_files.h"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/data/corpus.h"
#include "worker/train/step/trainer.h"

namespace nsa::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void FlipAByte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-5, std::ios::end);
  file.put(byte);
}

void ExpectToResumeBitForBit(const std::function<void(v1::JobSpec*)>& change,
                             std::initializer_list<int64_t> stops) {
  const TempDir dir;
  const auto job = [&](const std::string& out) {
    v1::JobSpec spec = Job(dir, out);
    change(&spec);
    return spec;
  };
  const RankResult whole = RunJob(dir, job("whole"))[0];
  const std::string weights = Weights(dir / "whole", 12);
  for (const int64_t at : stops) {
    const std::string out = "stopped-" + std::to_string(at);
    const TempDir runs;
    const v1::JobSpec spec = job(out);
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

TEST(Trainer, ResumesBitForBitAfterAStopAtAnyStep) {
  ExpectToResumeBitForBit([](v1::JobSpec*) {}, {1, 5, 7, 11});
}

TEST(Trainer, ResumesBitForBitWithMuon) {
  ExpectToResumeBitForBit(
      [](v1::JobSpec* spec) {
        spec->mutable_train()->set_optimizer(v1::OPTIMIZER_MUON);
        spec->mutable_train()->set_muon_lr(0.01);
      },
      {5});
}

// A worker that knew only the hashes held out a whole passage of a small text.
TEST(Trainer, ACheckpointOfTheHashesAloneGoesOnWithItsValidationDocuments) {
  const TempDir dir;
  std::string text;
  for (int i = 0; text.size() < 100'000; ++i) text += "paragraph " + std::to_string(i) + "\n\n";
  std::ofstream(dir / "a.txt") << text;
  v1::JobSpec spec = Job(dir);
  spec.mutable_model()->set_vocab(256);
  v1::DataSpec* const data = spec.mutable_data();
  data->set_source(v1::DATA_SOURCE_TEXT);
  data->add_path(dir / "a.txt");
  data->set_tokenizer(v1::TOKENIZER_BYTE);
  data->set_val_fraction(0.01);
  const auto corpus = LoadCorpus(*data, 256, absl::Seconds(20), {}, {}, nullptr, {},
                                 {.seq_len = spec.train().seq_len()});
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  ASSERT_NE(corpus->info.fingerprint, corpus->info.fingerprint_by_hash);
  RunJob(dir, spec, StopAt(7, 0));
  const std::filesystem::path checkpoint = CheckpointsDir(dir / "out") / CheckpointName(7);
  absl::StatusOr<v1::CheckpointState> state = ReadCheckpointState(checkpoint);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->data().fingerprint(), corpus->info.fingerprint);
  state->mutable_data()->set_fingerprint(corpus->info.fingerprint_by_hash);
  std::ofstream(checkpoint / "state.json") << *SerializeCheckpointState(*state);
  const RankResult result = RunJob(dir, spec, {.generation = 2})[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  EXPECT_EQ(result.started.resumed_step(), 7);
  const auto last = ReadCheckpointState(CheckpointsDir(dir / "out") / CheckpointName(12));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->data().fingerprint(), corpus->info.fingerprint_by_hash);
}

TEST(Trainer, AnotherOptimizersMomentsAreNotContinued) {
  const TempDir dir;
  RunJob(dir, Job(dir), StopAt(7, 0));
  v1::JobSpec spec = Job(dir, "other");
  spec.mutable_train()->set_optimizer(v1::OPTIMIZER_MUON);
  spec.mutable_restart()->set_resume(CheckpointsDir(dir / "out") / CheckpointName(7));
  const TempDir runs;
  const RankResult refused = RunJob(runs, spec)[0];
  EXPECT_EQ(refused.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(refused.finished.text(),
              AllOf(HasSubstr("optimizer: adamw (this job's is muon)"), HasSubstr("restart.init")));
  spec.mutable_restart()->set_init(spec.restart().resume());
  spec.mutable_restart()->set_resume("auto");
  const TempDir again;
  EXPECT_EQ(RunJob(again, spec)[0].finished.outcome(), v1::OUTCOME_COMPLETED);
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

TEST(Trainer, MoreStepsThatMoveTheLearningRateNeedTheJobsConsent) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  RunJob(dir, spec, StopAt(7, 0));
  spec.mutable_train()->set_steps(24);
  const RankResult refused = RunJob(dir, spec, {.generation = 2})[0];
  EXPECT_EQ(refused.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(refused.finished.text(), AllOf(HasSubstr("train.steps: 12 -> 24 "),
                                             HasSubstr("restart.allow_new_schedule: true")));
  spec.mutable_restart()->set_allow_new_schedule(true);
  const RankResult allowed = RunJob(dir, spec, {.generation = 3})[0];
  EXPECT_EQ(allowed.finished.step(), 24) << allowed.finished.text();
  EXPECT_THAT(EventTexts(allowed, "SCHEDULE_CHANGED"), ElementsAre(HasSubstr("12 -> 24 ")));
}

TEST(Trainer, MoreStepsAtAConstantLearningRateNeedNoConsent) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_lr_schedule(v1::LR_SCHEDULE_CONSTANT);
  RunJob(dir, spec);
  spec.mutable_train()->set_steps(15);
  const RankResult longer = RunJob(dir, spec, {.generation = 2})[0];
  EXPECT_EQ(longer.started.resumed_step(), 12);
  EXPECT_EQ(longer.finished.step(), 15) << longer.finished.text();
}

TEST(Trainer, ACheckpointBeyondTheLastStepIsRefused) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_lr_schedule(v1::LR_SCHEDULE_CONSTANT);
  RunJob(dir, spec);
  spec.mutable_train()->set_steps(10);
  const RankResult refused = RunJob(dir, spec, {.generation = 2})[0];
  EXPECT_EQ(refused.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(refused.finished.text(),
              HasSubstr("train.steps: 10 (" + (dir / "out").string() +
                        " has a checkpoint of step 12); raise train.steps to train it further"));
  spec.mutable_train()->set_steps(12);
  EXPECT_EQ(RunJob(dir, spec, {.generation = 3})[0].finished.outcome(), v1::OUTCOME_COMPLETED);
}

TEST(Trainer, ACheckpointOfOtherSettingsInItsOutDirIsRefusedByTheNamesOfTheKeys) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);
  RunJob(dir, spec, StopAt(6, 0));
  spec.mutable_nsa()->set_w(7);
  const RankResult refused = RunJob(dir, spec, {.generation = 2})[0];
  EXPECT_EQ(refused.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(refused.finished.text(), HasSubstr("nsa.w: 6 -> 7"));
}

TEST(Trainer, TheBestValidationBeforeARestartStaysInTheMetrics) {
  const TempDir dir;
  const RankResult first = RunJob(dir, Job(dir), StopAt(5, 0))[0];
  ASSERT_EQ(first.evals.size(), 2u) << "after step 4, and where it was stopped";
  const v1::EvalRecord& best =
      first.evals[1].loss() < first.evals[0].loss() ? first.evals[1] : first.evals[0];
  v1::JobSpec spec = Job(dir);
  spec.mutable_train()->set_eval_every(0);
  RunJob(dir, spec, LaunchedWith(v1::STOP_MODE_AT_STEP, 6, {.generation = 2}));
  const auto metrics = nlohmann::json::parse(ReadFile(dir / "out/metrics.json"));
  EXPECT_EQ(metrics["step"], 6);
  EXPECT_EQ(metrics["val_best_step"], best.step());
  EXPECT_EQ(metrics["val_loss_best"], best.loss());
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

TEST(Trainer, LayersInTurnTrainAndResumeBitForBitOnOneAndTwoRanks) {
  for (const int world : {1, 2}) {
    const TempDir dir;
    const auto job = [&](const std::string& out) {
      v1::JobSpec spec = Job(dir, out);
      SetLayers(&spec, {"win", "cmp+sel"});
      spec.mutable_nsa()->set_audit_every(5);
      return spec;
    };
    const RankResult whole = RunJob(dir, job("whole"), {.world = world})[0];
    ASSERT_EQ(whole.finished.outcome(), v1::OUTCOME_COMPLETED) << whole.finished.text();
    EXPECT_LT(whole.evals[2].loss(), whole.evals[0].loss());
    EXPECT_FALSE(whole.steps[4].layers(0).has_gate());
    EXPECT_TRUE(whole.steps[4].layers(1).has_gate());
    EXPECT_TRUE(whole.steps[4].layers(0).audit().has_window_mass());
    EXPECT_FALSE(whole.steps[4].layers(1).audit().has_window_mass());
    const TempDir runs;
    const RankResult first = RunJob(runs, job("parts"), StopAt(7, 0, world))[0];
    const RankResult second = RunJob(runs, job("parts"), {.world = world, .generation = 2})[0];
    std::vector<double> losses = Losses(first);
    for (const double loss : Losses(second)) losses.push_back(loss);
    EXPECT_EQ(losses, Losses(whole));
    EXPECT_TRUE(Weights(dir / "parts", 12) == Weights(dir / "whole", 12));
    const auto others = GoOnFrom(CheckpointsDir(dir / "whole") / CheckpointName(5), dir, "others",
                                 [](v1::JobSpec* spec) {
                                   SetLayers(spec, {"cmp+sel", "win"});
                                 });
    EXPECT_EQ(others.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
    EXPECT_THAT(others.finished.text(), HasSubstr("nsa.layers[0]: win -> cmp+sel;"));
  }
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
RunOptions RestartAfter(int64_t step, int64_t generation) {
  return {.world = 2, .generation = generation, .launch = [step](v1::WorkerLaunch* launch) {
            launch->set_resume_from_step(step);
          }};
}

TEST(Trainer, ARestartWithoutTheCheckpointsThatWerePublishedBeginsNothing) {
  const TempDir dir;
  const v1::JobSpec spec = Job(dir);
  RunJob(dir, spec, StopAt(7, 0, 2));
  std::filesystem::rename(dir / "out", dir / "moved");
  const auto expect_refused = [&](int64_t generation) {
    for (const RankResult& lost : RunJob(dir, spec, RestartAfter(7, generation))) {
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
  const RankResult back = RunJob(dir, spec, RestartAfter(7, 4))[0];
  EXPECT_EQ(back.finished.outcome(), v1::OUTCOME_COMPLETED) << back.finished.text();
  EXPECT_EQ(back.started.resumed_step(), 7);
}

TEST(Trainer, ACheckpointSaysWhatItsJobWasSubmittedWith) {
  const TempDir dir;
  RunJob(dir, Job(dir), StopAt(7, 0, 2));
  EXPECT_EQ(RunJob(dir, Job(dir), RestartAfter(7, 2))[0].started.resumed_step(), 7);
  const auto state = ReadCheckpointState(CheckpointsDir(dir / "out") / CheckpointName(12));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->spec().restart().resume(), "auto");
}

TEST(Trainer, ARestartTakesItsNewestCheckpointWhicheverOneWasToldOf) {
  const TempDir dir;
  RunJob(dir, Job(dir), StopAt(7, 0, 2));
  // The coordinator knows of a checkpoint older than the newest one, or of one that is gone.
  for (const int64_t told : {6, 20}) {
    const RankResult result = RunJob(dir, Job(dir), RestartAfter(told, told))[0];
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

// Preflight cannot count the documents of an archive.
TEST(TrainerResume, ANewRunSaysOnceThatAnotherShareIsHeldOutThanWasAskedFor) {
  const TempDir dir, runs, others;
  std::string lines;
  for (int line = 0; line < 20; ++line) {
    absl::StrAppend(&lines, "{\"text\": \"", 10 + line, std::string(100, '5'), "\"}\n");
  }
  Write(dir / "a.jsonl.gz", Gzip(lines));
  v1::JobSpec spec = Job(dir);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_JSONL);
  spec.mutable_data()->add_path(dir / "a.jsonl.gz");
  spec.mutable_data()->set_val_fraction(0.001);
  const auto ranks = RunJob(runs, spec, StopAt(5, 0, /*world=*/2));
  EXPECT_THAT(EventTexts(ranks[0], "VAL_SHARE"),
              ElementsAre(HasSubstr("data.val_fraction: 0.001 (it holds out 103 of ")));
  EXPECT_THAT(EventTexts(ranks[1], "VAL_SHARE"), testing::IsEmpty());
  const RankResult second = RunJob(runs, spec, {.generation = 2})[0];
  EXPECT_EQ(second.started.resumed_step(), 5) << second.finished.text();
  EXPECT_THAT(EventTexts(second, "VAL_SHARE"), testing::IsEmpty());
  spec.mutable_data()->set_val_fraction(0.05);
  spec.mutable_train()->set_out_dir(dir / "other");
  EXPECT_THAT(EventTexts(RunJob(others, spec)[0], "VAL_SHARE"), testing::IsEmpty());
}

}  // namespace
}  // namespace nsa::train
