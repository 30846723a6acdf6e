// A run whose tokens do not fit into 16 bits.
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/characters/byte_characters.h"
#include "common/checkpoint/safetensors_file.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/score/sample.h"
#include "worker/train/score/score.h"

namespace nsa::train {
namespace {

constexpr int32_t kVocab = 66000;         // small, for the sake of ThreadSanitizer
constexpr int32_t kFirst = 65990;         // the tokens are kFirst … kVocab − 1
constexpr int32_t kCut = kFirst - 65536;  // what would be left of them in 16 bits

// A file of llm.c with tokens of four bytes; the last one separates documents.
void WriteTokens(const std::filesystem::path& path, int32_t stride) {
  constexpr int32_t kTokens = 4000;
  std::vector<int32_t> all(256);
  all[0] = 20240801, all[1] = 7, all[2] = kTokens;
  for (int32_t i = 0; i < kTokens; ++i) {
    all.push_back(i % 50 == 0 ? kVocab - 1 : kFirst + (stride * i + i / 50) % 9);
  }
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(all.data()), std::ssize(all) * 4);
}

v1::JobSpec LargeVocabularyJob(const TempDir& dir) {
  WriteTokens(dir / "tokens.bin", 1);
  WriteTokens(dir / "val.bin", 2);
  v1::JobSpec spec = Job(dir);
  spec.mutable_model()->set_vocab(kVocab);
  v1::DataSpec* const data = spec.mutable_data();
  data->set_source(v1::DATA_SOURCE_TOKENS);
  data->clear_tokenizer();
  data->add_path(dir / "tokens.bin");
  data->set_separator(std::to_string(kVocab - 1));
  data->add_val_path(dir / "val.bin");
  data->set_val_fraction(0);
  spec.mutable_train()->set_batch_size(2);
  spec.mutable_train()->set_eval_every(10);
  spec.mutable_train()->set_eval_batches(1);
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->set_weight_decay(0);  // so that rows without a gradient stay as they are
  return spec;
}

std::vector<float> Embedding(const v1::JobSpec& spec, int64_t step) {
  const auto file = SafetensorsFile::Open(CheckpointsDir(spec.train().out_dir()) /
                                          CheckpointName(step) / "model.safetensors");
  EXPECT_OK(file);
  std::vector<float> values(static_cast<size_t>(kVocab) * spec.model().dim());
  EXPECT_OK((*file)->ReadBytes((*file)->tensors().at("embed.weight"), 0,
                               std::as_writable_bytes(std::span(values))));
  return values;
}

TEST(TrainerVocabulary, LearnsTokensAbove65535) {
  const TempDir dir;
  const v1::JobSpec spec = LargeVocabularyJob(dir);
  const RankResult result = RunJob(dir, spec)[0];
  ASSERT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  const std::vector<double> losses = Losses(result);
  EXPECT_NEAR(losses.front(), std::log(kVocab), 1);
  EXPECT_LT(losses.back(), losses.front() - 2);

  const std::vector<float> before = Embedding(spec, 5), after = Embedding(spec, 10);
  const auto changed = [&](int32_t token) {
    const auto row = static_cast<ptrdiff_t>(token) * spec.model().dim();
    return !std::equal(before.begin() + row, before.begin() + row + spec.model().dim(),
                       after.begin() + row);
  };
  for (int32_t i = 0; i < 9; ++i) {
    EXPECT_TRUE(changed(kFirst + i)) << kFirst + i;
    EXPECT_FALSE(changed(kCut + i)) << kCut + i;
  }
}

// A tokenizer.json of bytes, of words with ids above 65,535, and of a separator.
void WriteTokenizer(const std::filesystem::path& path) {
  nlohmann::json vocab = nlohmann::json::object();
  for (const std::string& character : BytesAsCharacters()) vocab[character] = vocab.size();
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"h", "e"}, {"\xc4\xa0", "t"}, {"\xc4\xa0t", "he"}, {"o", "n"}};
  int id = kFirst;
  for (const auto& [left, right] : merges) vocab[left + right] = id++;
  const nlohmann::json json = {
      {"added_tokens", {{{"id", kVocab - 1}, {"content", "<|end_of_text|>"}, {"special", true}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  std::ofstream(path) << json.dump();
}

TEST(TrainerVocabulary, TheTokenizerOfAFileTrainsScoresAndSamples) {
  const TempDir dir;
  WriteTokenizer(dir / "tokenizer.json");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "on the on the\n\n";
  std::ofstream(dir / "text.txt") << text;
  v1::JobSpec spec = Job(dir);
  spec.mutable_model()->set_vocab(kVocab);
  v1::DataSpec* const data = spec.mutable_data();
  data->set_source(v1::DATA_SOURCE_TEXT);
  data->set_tokenizer(v1::TOKENIZER_BPE);
  data->set_tokenizer_path((dir / "tokenizer.json").string());
  data->add_path(dir / "text.txt");
  data->add_val_path(dir / "val.txt");
  data->set_val_fraction(0);
  std::ofstream(dir / "val.txt") << text.substr(0, 200);
  std::ofstream(dir / "score.txt") << "on the";
  spec.mutable_train()->set_batch_size(2);
  spec.mutable_train()->set_eval_every(0);
  const RankResult result = RunJob(dir, spec)[0];
  ASSERT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  EXPECT_LT(Losses(result).back(), Losses(result).front() - 2);

  const auto trained = TrainedModel::Load(spec.train().out_dir());
  ASSERT_OK(trained);
  const auto scored = ScoreFile(**trained, {dir / "score.txt"}, dir / "scores.jsonl");
  ASSERT_OK(scored);
  EXPECT_EQ(scored->tokens, 2);
  EXPECT_THAT(ReadFile(dir / "scores.jsonl"),
              testing::AllOf(testing::HasSubstr("\"bytes\": 2, \"token\": 65993"),
                             testing::HasSubstr("\"bytes\": 4, \"token\": 65992")));
  const auto sampled = Sample(**trained, {.prompt = "on", .tokens = 4, .draw = {.temperature = 0}});
  ASSERT_OK(sampled);
  EXPECT_THAT(*sampled, testing::HasSubstr("the"));
}

}  // namespace
}  // namespace nsa::train
