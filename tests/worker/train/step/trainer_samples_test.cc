// The texts that a job writes while it trains: what they depend on, and that training does not
// depend on them.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/estimate/shares.h"
#include "nlohmann/json.hpp"
#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Trains on a text, validates after steps 4, 8 and 12, and writes two texts after each.
v1::JobSpec TextJob(const TempDir& dir, const std::string& out, bool samples = true) {
  v1::JobSpec spec = Job(dir, out);
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + (i * i * 31 + i / 7) % 26);
  std::ofstream(dir / "train.txt") << text;
  std::ofstream(dir / "val.txt") << text.substr(1000, 1000) << "another end";
  v1::DataSpec* const data = spec.mutable_data();
  data->set_source(v1::DATA_SOURCE_TEXT);
  data->set_tokenizer(v1::TOKENIZER_BYTE);
  data->add_path(dir / "train.txt");
  data->add_val_path(dir / "val.txt");
  data->set_val_fraction(0);
  spec.mutable_model()->set_vocab(256);
  if (samples) {
    spec.mutable_sample()->add_prompts("");
    spec.mutable_sample()->add_prompts("To be");
    spec.mutable_sample()->set_tokens(30);  // beyond the 24 tokens of a sequence
  }
  ApplyDefaults(&spec);
  return spec;
}

std::vector<RankResult> Trained(const v1::JobSpec& spec, RunOptions options = {}) {
  const TempDir runs;
  std::vector<RankResult> results = RunJob(runs, spec, options);
  for (const RankResult& rank : results) {
    EXPECT_EQ(rank.finished.outcome(), v1::OUTCOME_COMPLETED) << rank.finished.text();
  }
  return results;
}

// "step prompt: text" of every sample; fails where there is none.
std::vector<std::string> Texts(const RankResult& result) {
  std::vector<std::string> texts;
  for (const v1::SampleRecord& sample : result.samples) {
    EXPECT_EQ(sample.error(), "");
    texts.push_back(absl::StrCat(sample.step(), " ", sample.prompt(), ": ", sample.text()));
  }
  return texts;
}

std::vector<nlohmann::json> FileLines(const std::filesystem::path& out_dir) {
  std::vector<nlohmann::json> lines;
  for (const absl::string_view line :
       absl::StrSplit(ReadFile(out_dir / "samples.jsonl"), '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(std::string(line)));
  }
  return lines;
}

TEST(TrainerSamples, EveryPromptIsContinuedAfterEveryValidation) {
  const TempDir dir;
  const RankResult result = Trained(TextJob(dir, "out"))[0];
  ASSERT_THAT(result.samples, SizeIs(6));
  const std::vector<nlohmann::json> lines = FileLines(dir / "out");
  ASSERT_THAT(lines, SizeIs(6));
  for (size_t i = 0; i < 6; ++i) {
    const v1::SampleRecord& sample = result.samples[i];
    EXPECT_EQ(sample.step(), 4 * static_cast<int64_t>(i / 2 + 1));
    EXPECT_EQ(sample.prompt(), i % 2 == 0 ? "" : "To be");
    EXPECT_EQ(sample.tokens(), 30);
    EXPECT_FALSE(sample.text().empty());
    EXPECT_EQ(lines[i]["step"], sample.step());
    EXPECT_EQ(lines[i]["prompt"], sample.prompt());
    EXPECT_EQ(lines[i]["text"], sample.text());
    EXPECT_FALSE(lines[i].contains("error"));
  }
  EXPECT_THAT(EventTexts(result, "SAMPLE_FAILED"), IsEmpty());
}

TEST(TrainerSamples, NoBitOfTrainingDependsOnThem) {
  for (const int world : {1, 2}) {
    const TempDir dir;
    const RankResult with = Trained(TextJob(dir, "with"), {.world = world})[0];
    const RankResult without = Trained(TextJob(dir, "without", false), {.world = world})[0];
    EXPECT_THAT(without.samples, IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(dir / "without/samples.jsonl"));
    EXPECT_EQ(Losses(with), Losses(without));
    for (const auto& file :
         std::filesystem::directory_iterator(CheckpointsDir(dir / "with") / CheckpointName(12))) {
      const std::string name = file.path().filename();
      if (name == "state.json") continue;  // has the job
      EXPECT_TRUE(ReadFile(file.path()) ==
                  ReadFile(CheckpointsDir(dir / "without") / CheckpointName(12) / name))
          << name;
    }
  }
}

TEST(TrainerSamples, AResumedRunRepeatsThem) {
  const TempDir dir;
  const std::vector<std::string> whole = Texts(Trained(TextJob(dir, "out"))[0]);
  ASSERT_THAT(whole, SizeIs(6));
  for (const int64_t step : {10, 12}) {
    std::filesystem::remove_all(CheckpointsDir(dir / "out") / CheckpointName(step));
  }
  const RankResult again = Trained(TextJob(dir, "out"), {.generation = 2})[0];
  EXPECT_EQ(again.started.resumed_step(), 5);
  EXPECT_EQ(Texts(again), std::vector<std::string>(whole.begin() + 2, whole.end()));
  std::vector<int64_t> steps;
  for (const nlohmann::json& line : FileLines(dir / "out")) steps.push_back(line["step"]);
  EXPECT_THAT(steps, ElementsAre(4, 4, 8, 8, 12, 12)) << "no step stands there twice";
}

TEST(TrainerSamples, OnlyRankZeroWritesAlsoWithDividedStateAndSharedSequences) {
  const TempDir dir;
  std::vector<std::string> texts;
  for (const v1::Shard shard : LevelsOf(TextJob(dir, ""))) {
    v1::JobSpec spec = TextJob(dir, std::string(ShardName(shard)));
    spec.mutable_resources()->set_gpus(2);
    spec.mutable_runtime()->set_shard(shard);
    const std::vector<RankResult> ranks = Trained(spec, {.world = 2});
    EXPECT_THAT(ranks[1].samples, IsEmpty());
    if (shard == v1::SHARD_NONE) texts = Texts(ranks[0]);
    EXPECT_EQ(Texts(ranks[0]), texts);
  }
  EXPECT_THAT(texts, SizeIs(6));
  v1::JobSpec spec = TextJob(dir, "context");
  spec.mutable_resources()->set_gpus(2);
  spec.mutable_resources()->set_context_parallel(2);
  EXPECT_THAT(Texts(Trained(spec, {.world = 2})[0]), SizeIs(6));
}

TEST(TrainerSamples, AnErrorIsReportedOnceAndEndsNothing) {
  const TempDir dir;
  v1::JobSpec spec = Job(dir);  // 64 generated tokens: no tokenizer has so few
  spec.mutable_sample()->add_prompts("To be");
  spec.mutable_sample()->add_prompts("or not");
  ApplyDefaults(&spec);
  const RankResult result = Trained(spec)[0];
  ASSERT_THAT(result.samples, SizeIs(6));
  for (const v1::SampleRecord& sample : result.samples) {
    EXPECT_THAT(sample.error(), HasSubstr("model.vocab: 64"));
    EXPECT_EQ(sample.text(), "");
  }
  EXPECT_THAT(EventTexts(result, "SAMPLE_FAILED"),
              ElementsAre(HasSubstr("step 4: model.vocab: 64")));
  EXPECT_THAT(std::string(FileLines(dir / "out")[0]["error"]), HasSubstr("model.vocab"));
}

}  // namespace
}  // namespace nsa::train
