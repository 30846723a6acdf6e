// A run whose tokens do not fit into 16 bits.
#include <cmath>
#include <string>
#include <vector>

#include "common/checkpoint/safetensors_file.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

constexpr int32_t kVocab = 100000;
constexpr int32_t kFirst = 99990;         // the tokens are kFirst … kVocab − 1
constexpr int32_t kCut = kFirst - 65536;  // what would be left of them in 16 bits

// A file of llm.c with tokens of four bytes, of which the last one separates documents.
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
  spec.mutable_train()->set_weight_decay(0);  // so that rows without a gradient stay as they are
  return spec;
}

std::vector<float> Embedding(const v1::JobSpec& spec, int64_t step) {
  const auto file = SafetensorsFile::Open(CheckpointsDir(spec.train().out_dir()) /
                                          CheckpointName(step) / "model.safetensors");
  EXPECT_OK(file);
  std::vector<float> values(static_cast<size_t>(kVocab) * spec.model().dim());
  EXPECT_OK((*file)->Read("embed.weight", values));
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

}  // namespace
}  // namespace nsa::train
