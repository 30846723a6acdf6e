#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

// A source whose texts repeat one letter, which is learned at once, and one of many letters.
v1::JobSpec MixedJob(const TempDir& dir, const std::string& out) {
  v1::JobSpec spec = Job(dir, out);
  v1::DataSpec* const data = spec.mutable_data();
  data->clear_source();
  data->set_tokenizer(v1::TOKENIZER_BYTE);
  data->set_val_fraction(0.1);
  spec.mutable_model()->set_vocab(256);
  for (const std::string name : {"easy", "hard"}) {
    std::string lines;
    for (int i = 0; i < 100; ++i) {
      std::string text;
      for (int c = 0; c < 60 + i; ++c) {
        text += static_cast<char>('a' + (name == "easy" ? 0 : (i * 7919 + c * c * 31) % 26));
      }
      absl::StrAppend(&lines, "{\"body\": \"", text, "\"}\n");
    }
    std::ofstream(dir / (name + ".jsonl")) << lines;
    v1::MixSource* const mix = data->add_mix();
    mix->set_name(name);
    mix->set_source(v1::DATA_SOURCE_JSONL);
    mix->add_path(dir / (name + ".jsonl"));
    mix->set_text_field("body");
    mix->set_weight(name == "easy" ? 1 : 3);
  }
  std::ofstream(dir / "set.txt") << std::string(400, 'z');
  (*data->mutable_val())["zeds"] = dir / "set.txt";
  ApplyDefaults(&spec);
  return spec;
}

std::vector<std::string> Rows(const std::filesystem::path& path) {
  std::vector<std::string> rows = absl::StrSplit(ReadFile(path), '\n', absl::SkipEmpty());
  return rows;
}

// A source's place follows from the weights and the place in the mixture.
TEST(TrainerMix, AForkWithOtherWeightsBeginsItsDataAnew) {
  const TempDir dir;
  RunJob(dir, MixedJob(dir, "out"));
  const std::string checkpoint = (CheckpointsDir(dir / "out") / CheckpointName(5)).string();
  const auto fork = [&](const std::string& name, double easy, double hard) {
    v1::JobSpec spec = MixedJob(dir, name);
    spec.mutable_data()->mutable_mix(0)->set_weight(easy);
    spec.mutable_data()->mutable_mix(1)->set_weight(hard);
    spec.mutable_restart()->set_resume(checkpoint);
    const TempDir runs;
    const RankResult result = RunJob(runs, spec, {.job_id = name})[0];
    EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
    return result.events.at(0).text();
  };
  EXPECT_THAT(fork("same", 10, 30), testing::Not(testing::HasSubstr("the data begins anew")));
  EXPECT_THAT(fork("other", 3, 1), testing::HasSubstr("the data begins anew"));
}

TEST(TrainerMix, ReportsRowsAndLossOfEverySource) {
  const TempDir dir;
  const RankResult result = RunJob(dir, MixedJob(dir, "out"))[0];
  ASSERT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  ASSERT_EQ(result.steps.size(), 12u);
  for (const v1::StepRecord& step : result.steps) {
    ASSERT_EQ(step.sources_size(), 2);
    const v1::SourceShare &easy = step.sources(0), &hard = step.sources(1);
    EXPECT_EQ(easy.name(), "easy");
    EXPECT_EQ(easy.rows(), 1);  // of a batch of four
    EXPECT_EQ(hard.rows(), 3);
    // The loss of the step is the mean over all of its sequences.
    EXPECT_NEAR(step.loss(), (easy.loss() + 3 * hard.loss()) / 4, 1e-5);
  }
  const v1::StepRecord& last = result.steps.back();
  EXPECT_LT(last.sources(0).loss(), last.sources(1).loss());
  ASSERT_FALSE(result.evals.empty());
  for (const v1::EvalRecord& eval : result.evals) {
    ASSERT_EQ(eval.sets_size(), 1);
    EXPECT_EQ(eval.sets(0).name(), "zeds");
    EXPECT_GT(eval.sets(0).loss(), 0);
    EXPECT_NE(eval.sets(0).loss(), eval.loss());
    EXPECT_EQ(eval.sets(0).tokens(), 2 * 4 * 24);
  }
  const std::vector<std::string> sources = Rows(dir / "out/sources.csv");
  EXPECT_EQ(sources.at(0), "step,source,rows,loss,epoch,unix_seconds");
  EXPECT_THAT(sources.at(1), testing::StartsWith("1,easy,1,"));
  EXPECT_THAT(sources.at(2), testing::StartsWith("1,hard,3,"));
  const std::vector<std::string> sets = Rows(dir / "out/val_sets.csv");
  ASSERT_EQ(sets.size(), 1 + result.evals.size());
  const std::vector<std::string> fields = absl::StrSplit(sets[1], ',');
  EXPECT_EQ(fields[1], "zeds");
  EXPECT_NEAR(std::stod(fields[4]), std::stod(fields[2]) / std::log(2), 1e-4);  // bits a byte
  EXPECT_THAT(ReadFile(dir / "out/training.csv"), testing::HasSubstr(",mix,"));
}

TEST(TrainerMix, TwoRanksReportTheSameAsOne) {
  const TempDir one, two;
  const RankResult alone = RunJob(one, MixedJob(one, "out"))[0];
  const std::vector<RankResult> ranks = RunJob(two, MixedJob(two, "out"), {.world = 2});
  for (const RankResult& rank : ranks) {
    ASSERT_EQ(rank.steps.size(), alone.steps.size()) << rank.finished.text();
    for (size_t i = 0; i < rank.steps.size(); ++i) {
      for (int s = 0; s < 2; ++s) {
        const v1::SourceShare &mine = rank.steps[i].sources(s), &his = alone.steps[i].sources(s);
        EXPECT_EQ(mine.rows(), his.rows());
        EXPECT_EQ(mine.epoch(), his.epoch());
        EXPECT_NEAR(mine.loss(), his.loss(), 1e-3);
      }
    }
    EXPECT_NEAR(rank.evals.back().sets(0).loss(), alone.evals.back().sets(0).loss(), 1e-3);
  }
}

TEST(TrainerMix, AResumedRunGivesTheSameBits) {
  const TempDir dir;
  const v1::JobSpec spec = MixedJob(dir, "whole");
  const RankResult whole = RunJob(dir, spec)[0];
  v1::JobSpec broken = spec;
  broken.mutable_train()->set_out_dir(dir / "broken");
  const TempDir first, second;
  RunJob(first, broken, StopAt(7, 0));
  const RankResult rest = RunJob(second, broken, {.generation = 2})[0];
  ASSERT_EQ(rest.steps.size(), 5u) << rest.finished.text();
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(rest.steps[i].loss(), whole.steps[7 + i].loss());
    for (int s = 0; s < 2; ++s) {
      EXPECT_EQ(rest.steps[i].sources(s).loss(), whole.steps[7 + i].sources(s).loss());
      EXPECT_EQ(rest.steps[i].sources(s).epoch(), whole.steps[7 + i].sources(s).epoch());
    }
  }
  EXPECT_EQ(Weights(dir / "broken", 12), Weights(dir / "whole", 12));
}

TEST(TrainerMix, AJobWithoutAMixtureHasNoSources) {
  const TempDir dir;
  const RankResult result = RunJob(dir, Job(dir))[0];
  EXPECT_EQ(result.steps.back().sources_size(), 0);
  EXPECT_EQ(result.evals.back().sets_size(), 0);
  EXPECT_FALSE(std::filesystem::exists(dir / "out/sources.csv"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out/val_sets.csv"));
}

}  // namespace
}  // namespace nsa::train
