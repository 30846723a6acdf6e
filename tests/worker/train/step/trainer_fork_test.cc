// How a run begins with a checkpoint or with the weights of another job.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_dir.h"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/step/trainer.h"

namespace nsa::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Path of the checkpoint of step 5 of a run of 12 steps in `out`.
std::string CheckpointOfStep5(const TempDir& dir) {
  const RankResult first = RunJob(dir, Job(dir))[0];
  EXPECT_EQ(first.finished.outcome(), v1::OUTCOME_COMPLETED);
  return (CheckpointsDir(dir / "out") / "step-00000005").string();
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
           {"mask", [](auto* spec) { spec->mutable_data()->set_document_mask(true); }, true, false},
           {"eval_batches", [](auto* spec) { spec->mutable_train()->set_eval_batches(99); }, true,
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

TEST(Trainer, AForkMayChangeWhatHasNoParametersAndMayNameAnOutDir) {
  const TempDir dir;
  RunJob(dir, Job(dir, "first"), StopAt(6, 0));
  const TempDir runs;
  v1::JobSpec spec = Job(dir, "second");
  spec.mutable_nsa()->set_w(12);
  spec.mutable_model()->set_rope_scale(2);
  spec.mutable_nsa()->set_gate(v1::GATE_SIGMOID);
  spec.mutable_restart()->set_resume(dir / "first");
  const RankResult fork = RunJob(runs, spec, {.job_id = "job-2"})[0];
  EXPECT_EQ(fork.started.resumed_step(), 6) << fork.finished.text();
  EXPECT_EQ(fork.finished.step(), 12);
  EXPECT_THAT(EventTexts(fork, "RESUMED"),
              ElementsAre(AllOf(HasSubstr("nsa.w: 6 -> 12"), HasSubstr("model.rope_scale"))));
}

TEST(Trainer, StartsAtStepZeroWithTheWeightsOfAnotherRun) {
  const TempDir dir;
  const v1::JobSpec first = Job(dir, "first");
  const RankResult before = RunJob(dir, first)[0];
  for (const int world : {1, 2}) {
    const TempDir runs;
    v1::JobSpec spec = Job(dir, "second-" + std::to_string(world));
    spec.mutable_train()->set_lr(1e-9);
    spec.mutable_restart()->set_init(world == 1 ? dir / "first"
                                                : CheckpointsDir(dir / "first") / "latest.ckpt");
    const RankResult second = RunJob(runs, spec, {.world = world, .job_id = "job-2"})[0];
    ASSERT_EQ(second.steps.size(), 12u) << second.finished.text();
    EXPECT_EQ(second.started.resumed_step(), 0);
    EXPECT_THAT(second.started.initialized_from(), HasSubstr("first/checkpoints/step-00000012"));
    EXPECT_LT(second.steps[0].loss(), before.steps[0].loss()) << "it has learnt already";
    EXPECT_EQ(second.steps[0].total_tokens(), 4 * 24);
    EXPECT_THAT(EventTexts(second, "INITIALIZED"), ElementsAre(HasSubstr("weights of step 12")));
    const auto state =
        ReadCheckpointState(CheckpointsDir(spec.train().out_dir()) / CheckpointName(5));
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->data().sequence(), 5 * 4) << "the data begins anew";
    // A restart continues from its own checkpoints.
    const RankResult again =
        RunJob(runs, spec, {.world = world, .generation = 2, .job_id = "job-2"})[0];
    EXPECT_EQ(again.started.resumed_step(), 12);
  }
}

TEST(Trainer, RefusesWeightsOfAnotherShape) {
  const TempDir dir;
  RunJob(dir, Job(dir, "first"));
  v1::JobSpec spec = Job(dir, "second");
  spec.mutable_model()->set_mlp_ratio(3);
  spec.mutable_restart()->set_init(dir / "first");
  const TempDir runs;
  const RankResult refused = RunJob(runs, spec, {.job_id = "job-2"})[0];
  EXPECT_EQ(refused.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(refused.finished.text(),
              AllOf(HasSubstr("restart.init"), HasSubstr("model.mlp_ratio: 2 -> 3")));
}

TEST(Trainer, RefusesWeightsThatAreNotFinite) {
  const TempDir dir;
  v1::CheckpointState state;
  *state.mutable_spec() = Job(dir, "first");
  state.set_step(5);
  const ParameterLayout layout(state.spec());
  Arena parameters(&layout);
  Initialize(7, &parameters);
  parameters.flat()[3] = std::nanf("");
  auto writer = CheckpointWriter::Open({.out_dir = *Folder::Make(dir / "first")});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)
                  ->Save({&layout, parameters.flat(), parameters.flat(), parameters.flat()}, state)
                  .ok());
  ASSERT_TRUE((*writer)->Drain().ok());
  v1::JobSpec spec = Job(dir, "second");
  spec.mutable_restart()->set_init(dir / "first");
  const TempDir runs;
  const RankResult refused = RunJob(runs, spec, {.job_id = "job-2"})[0];
  EXPECT_EQ(refused.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(refused.finished.text(),
              AllOf(HasSubstr("restart.init: 1 of "), HasSubstr("embed.weight")));
}

TEST(Trainer, RefusesAnotherJobsCheckpointOfAnotherModelOrBehindItsEnd) {
  const TempDir dir;
  const std::string checkpoint = CheckpointOfStep5(dir);
  const auto wider = GoOnFrom(checkpoint, dir, "wider",
                              [](v1::JobSpec* spec) { spec->mutable_model()->set_mlp_ratio(3); });
  EXPECT_EQ(wider.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(wider.finished.text(), HasSubstr("restart.resume: "));
  EXPECT_THAT(wider.finished.text(), HasSubstr("model.mlp_ratio: 2 -> 3"));
  const auto over = GoOnFrom(checkpoint, dir, "over",
                             [](v1::JobSpec* spec) { spec->mutable_train()->set_steps(5); });
  EXPECT_EQ(over.finished.outcome(), v1::OUTCOME_FAILED_FINAL);
  EXPECT_THAT(over.finished.text(), HasSubstr("a checkpoint of step 5"));
}

}  // namespace
}  // namespace nsa::train
