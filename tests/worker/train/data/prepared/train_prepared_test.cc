// A run on prepared data gives the bits of the run on the files.
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/data/prepared/prepared_jobs.h"
#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

// Steps and validations of a run, and its weights.
struct Trained {
  std::vector<double> losses, val_losses, set_losses;
  std::string weights;
};

// A mixture of three sources with files of validation and a named set, or one source with a
// fraction.
v1::JobSpec JobWith(const TempDir& dir, const v1::DataSpec& data) {
  v1::JobSpec spec = Job(dir);
  *spec.mutable_data() = data;
  spec.mutable_data()->set_document_mask(true);
  spec.mutable_model()->set_vocab(256);
  spec.mutable_train()->set_seed(20261123);
  ApplyDefaults(&spec);
  return spec;
}

Trained TrainInto(v1::JobSpec spec, const std::filesystem::path& out, int world) {
  spec.mutable_train()->set_out_dir(out);
  const TempDir runs;
  const RankResult result = RunJob(runs, spec, {.world = world})[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  Trained run{.losses = Losses(result), .weights = Weights(out, 12)};
  for (const v1::EvalRecord& eval : result.evals) {
    run.val_losses.push_back(eval.loss());
    for (const auto& set : eval.sets()) run.set_losses.push_back(set.loss());
  }
  return run;
}

TEST(TrainOnPrepared, GivesTheSameLossesAndWeightsOnOneAndOnTwoRanks) {
  const TempDir dir;
  const auto jobs = JobsOfEverySource(dir);
  for (const char* name : {"mixture", "jsonl, fraction"}) {
    const v1::JobSpec spec = JobWith(dir, jobs.at(name).data());
    ASSERT_OK(PrepareInto(dir / "tokens", spec));
    const v1::JobSpec prepared = JobOnPrepared(spec, dir / "tokens");
    for (const int world : {1, 2}) {
      const TempDir out;
      const Trained files = TrainInto(spec, out / "files", world);
      const Trained folders = TrainInto(prepared, out / "folders", world);
      EXPECT_EQ(files.losses.size(), 12u);
      EXPECT_FALSE(files.val_losses.empty());
      EXPECT_EQ(files.losses, folders.losses) << name << " on " << world;
      EXPECT_EQ(files.val_losses, folders.val_losses) << name << " on " << world;
      EXPECT_EQ(files.set_losses, folders.set_losses) << name << " on " << world;
      EXPECT_TRUE(files.weights == folders.weights) << name << " on " << world;
    }
  }
}

}  // namespace
}  // namespace nsa::train
