#include "worker/train/score/score.h"

#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/tokenize/byte_fallback.h"
#include "tests/worker/train/score/small_trained.h"
#include "worker/train/score/evaluate.h"
#include "worker/train/score/sample.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

std::string LongText() {
  std::string text;
  for (int i = 0; text.size() < 150; ++i) text += "word " + std::to_string(i * i) + ", ";
  return text;
}

TEST(TrainedModel, AModelThatIsNotFiniteSaysSo) {
  for (const float bad : {std::nanf(""), INFINITY, 3e38f, -3e38f}) {
    const TempDir dir;
    SaveSmallModel(
        dir, [](v1::JobSpec*) {}, {}, bad);
    EXPECT_THAT(TrainedModel::Load(dir.path()).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::AllOf(HasSubstr("1 of "), HasSubstr("not finite"),
                                        HasSubstr("embed.weight"))));
  }
}

TEST(TrainedModel, SizesOutOfRangeAreRefusedBeforeAnythingIsBuilt) {
  const std::vector<std::pair<std::string, std::function<void(v1::ModelSpec*)>>> absurd = {
      {"model.dim", [](v1::ModelSpec* model) { model->set_dim(2147483647); }},
      {"model.dim", [](v1::ModelSpec* model) { model->set_dim(-1); }},
      {"model.n_layers", [](v1::ModelSpec* model) { model->set_n_layers(1'000'000); }},
      {"model.vocab", [](v1::ModelSpec* model) { model->set_vocab(2147483647); }},
      {"n_heads", [](v1::ModelSpec* model) { model->set_n_heads(0); }},
      {"model.safetensors", [](v1::ModelSpec* model) { model->set_n_layers(512); }},
  };
  for (const auto& [field, edit] : absurd) {
    const TempDir dir;
    SaveSmallModel(
        dir, [](v1::JobSpec*) {}, [&](v1::JobSpec* spec) { edit(spec->mutable_model()); });
    const absl::Status status = TrainedModel::Load(dir.path()).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  }
}

TEST(ScoreWindows, ScoreEveryTokenOnceWithAllOfItsPastOrHalfAWindowOfIt) {
  for (const int32_t seq_len : {1, 2, 7, 32}) {
    for (const int64_t tokens : {0, 1, 2, 31, 32, 33, 48, 49, 100, 1000}) {
      int64_t next = 0;
      for (const ScoreWindow& window : ScoreWindows(tokens, seq_len)) {
        ASSERT_LE(window.length, seq_len);
        ASSERT_EQ(window.begin + window.first, next);
        ASSERT_LT(window.first, window.length);
        ASSERT_TRUE(window.begin == 0 || window.first >= seq_len - seq_len / 2 - 1) << seq_len;
        next = window.begin + window.length;
      }
      ASSERT_EQ(next, tokens) << seq_len;
    }
  }
}

TEST(Score, IsTheLogarithmOfTheProbabilityGivenTheWindowSoFar) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const std::string text = LongText();
  const auto tokens = Bytes(text);
  const auto scores = ScoreTokens(*trained, tokens);
  ASSERT_OK(scores);
  ASSERT_EQ(scores->size(), text.size());
  // Compute the same values in another way: from the next-token logits of one position at a time.
  auto model = trained->MakeModel(1, kSeqLen);
  ASSERT_OK(model);
  std::vector<int32_t> sequence = {0};
  sequence.insert(sequence.end(), tokens.begin(), tokens.end());
  std::vector<float> logits(256);
  for (const ScoreWindow& window : ScoreWindows(static_cast<int64_t>(tokens.size()), kSeqLen)) {
    for (int32_t t = window.first; t < window.length; ++t) {
      std::vector<int32_t> row(sequence.begin() + window.begin,
                               sequence.begin() + window.begin + t + 1);
      row.resize(kSeqLen, 'x');  // the model does not see later tokens
      ASSERT_OK((*model)->NextLogits(Exec{}, row, t, logits));
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      const auto target = static_cast<size_t>(window.begin + t);
      const double expected = logits[tokens[target]] - std::log(sum);
      // fp32 logits of magnitude below 16: 2^-24 · 16 each, a few of them.
      EXPECT_NEAR((*scores)[target], expected, 1e-5) << "byte " << target;
    }
  }
}

TEST(Score, AndSamplesOfAModelWithLayersInTurnAreThoseOfItsLogits) {
  const TempDir dir;
  SaveSmallModel(dir, [](v1::JobSpec* spec) {
    spec->mutable_nsa()->clear_branches();
    for (const char* const entry : {"win", "cmp+sel"}) spec->mutable_nsa()->add_layers(entry);
  });
  const auto trained = TrainedModel::Load(dir.path());
  ASSERT_OK(trained);
  const auto scores = ScoreTokens(**trained, Bytes("ab"));
  ASSERT_OK(scores);
  auto model = (*trained)->MakeModel(1, kSeqLen);
  ASSERT_OK(model);
  std::vector<int32_t> row(kSeqLen, 0);
  row[1] = 'a';
  std::vector<float> logits(256);
  ASSERT_OK((*model)->NextLogits(Exec{}, row, 1, logits));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  EXPECT_NEAR((*scores)[1], logits['b'] - std::log(sum), 1e-5);
  const auto likeliest = std::max_element(logits.begin() + 1, logits.end()) - logits.begin();
  const auto text = Sample(**trained, {.prompt = "a", .bytes = 1, .draw = {.temperature = 0}});
  ASSERT_OK(text);
  EXPECT_EQ(static_cast<unsigned char>(text->back()), likeliest);
}

TEST(Score, OfATextDoesNotDependOnTheTextsThatAScorerScoredBefore) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  Scorer scorer(trained.get());
  for (const std::string& text : {LongText(), std::string("short"), std::string("other"),
                                  std::string(), LongText().substr(0, 70)}) {
    const auto scores = scorer.Score(Bytes(text));
    const auto alone = ScoreTokens(*trained, Bytes(text));
    ASSERT_OK(scores);
    ASSERT_OK(alone);
    EXPECT_EQ(*scores, *alone) << text.size() << " bytes";
  }
}

TEST(Load, OnAGpuInAProgramWithoutCudaSaysWhichProgramToUse) {
  const TempDir dir;
  EXPECT_EQ(SmallModel(dir)->device(), "CPU");
  EXPECT_THAT(TrainedModel::Load(dir.path(), Backend::kCuda).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("built without it")));
}

TEST(Score, ProbabilitiesOfAllContinuationsSumToOne) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  double sum = 0;
  for (int byte = 0; byte < 256; ++byte) {
    auto tokens = Bytes("the text so far");
    tokens.push_back(byte);
    const auto scores = ScoreTokens(*trained, tokens);
    ASSERT_OK(scores);
    sum += std::exp(double{scores->back()});
  }
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(Score, LaterTextNeverChangesAnEarlierScore) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const std::string text = LongText();
  const auto whole = ScoreTokens(*trained, Bytes(text));
  std::string other = text;
  for (size_t i = 70; i < other.size(); ++i) other[i] = '#';
  const auto changed = ScoreTokens(*trained, Bytes(other));
  for (size_t i = 0; i < 70; ++i) EXPECT_EQ((*whole)[i], (*changed)[i]) << i;
  EXPECT_NE((*whole)[70], (*changed)[70]);
}

TEST(Score, WithADocumentMaskADocumentIsScoredAsIfItStoodAlone) {
  const TempDir dir;
  const auto trained = SmallModel(dir, /*document_mask=*/true);
  const std::string first = "one text", second = "another";
  const auto both = ScoreTokens(*trained, Bytes(first + '\0' + second));
  const auto changed = ScoreTokens(*trained, Bytes("ONE TEXT" + std::string(1, '\0') + second));
  ASSERT_OK(both);
  for (size_t i = first.size() + 1; i < both->size(); ++i)
    EXPECT_EQ((*both)[i], (*changed)[i]) << i;
}

TEST(Score, WritesOneObjectAByte) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  std::string text = "Hé";
  while (text.size() < 20'000) text += LongText();  // more than a piece of lines
  std::ofstream(dir / "text.txt") << text;
  const auto summary = ScoreFile(*trained, {dir / "text.txt"}, dir / "scores.jsonl");
  ASSERT_OK(summary);
  std::vector<std::string> lines = absl::StrSplit(*ReadWholeFile(dir / "scores.jsonl"), '\n');
  ASSERT_EQ(lines.size(), text.size() + 1);
  double nats = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto line = nlohmann::json::parse(lines[i]);
    EXPECT_EQ(line["offset"], i);
    EXPECT_EQ(line["bytes"], 1);
    EXPECT_EQ(line["token"], static_cast<unsigned char>(text[i]));
    EXPECT_LT(line["logprob"], 0);
    nats -= line["logprob"].get<double>();
  }
  EXPECT_EQ(summary->bytes, static_cast<int64_t>(text.size()));
  EXPECT_NEAR(summary->nats, nats, 1e-4);
}

// A space that the tokenizer puts in front of a text is none of its bytes.
TEST(Score, CountsTheBytesOfTheTextAndNotOfASpaceInFrontOfIt) {
  const TempDir dir;
  nlohmann::json json =
      byte_fallback::Tokenizer({byte_fallback::kMark, "T"}, {{byte_fallback::kMark, "T"}});
  json["normalizer"] = byte_fallback::SpaceInFront();
  std::ofstream(dir / "tokenizer.json") << json.dump();
  SaveSmallModel(dir, [&](v1::JobSpec* spec) {
    spec->mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
    spec->mutable_data()->set_tokenizer_path((dir / "tokenizer.json").string());
    spec->mutable_model()->set_vocab(static_cast<int32_t>(json["model"]["vocab"].size()));
  });
  const auto trained = TrainedModel::Load(dir.path());
  ASSERT_OK(trained);
  const std::string text = "The cell";
  std::ofstream(dir / "text.txt") << text;
  const auto summary = ScoreFile(**trained, {dir / "text.txt"}, dir / "scores.jsonl");
  ASSERT_OK(summary);
  const std::vector<std::string> lines =
      absl::StrSplit(*ReadWholeFile(dir / "scores.jsonl"), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), text.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto line = nlohmann::json::parse(lines[i]);
    EXPECT_EQ(line["offset"], i);
    EXPECT_EQ(line["bytes"], 1);
  }
  EXPECT_EQ(summary->bytes, std::ssize(text));
  const auto evaluation = EvaluateFile(**trained, {dir / "text.txt"});
  ASSERT_OK(evaluation);
  EXPECT_EQ(evaluation->all.bytes, summary->bytes);
}

TEST(Score, ReadsJsonLinesAsTrainingDoes) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const std::string lines = "{\"text\": \"one text\"}\n\n{\"text\": \"another\"}\n";
  std::string archive(ZSTD_compressBound(lines.size()), '\0');
  archive.resize(ZSTD_compress(archive.data(), archive.size(), lines.data(), lines.size(), 3));
  std::ofstream(dir / "text.jsonl.zst", std::ios::binary) << archive;
  const auto summary = ScoreFile(*trained, {dir / "text.jsonl.zst"}, dir / "scores.jsonl");
  ASSERT_OK(summary);
  EXPECT_EQ(summary->bytes, 15);
  EXPECT_EQ(summary->tokens, 15);
  std::string text;
  const auto alone = ScoreTokens(*trained, Bytes("another"));
  std::vector<std::string> scores = absl::StrSplit(*ReadWholeFile(dir / "scores.jsonl"), '\n');
  ASSERT_EQ(scores.size(), 16u);
  for (size_t i = 0; i < 15; ++i) {
    const auto score = nlohmann::json::parse(scores[i]);
    text += static_cast<char>(score["token"].get<int>());
    EXPECT_EQ(score["line"], i < 8 ? 1 : 3);
    EXPECT_EQ(score["offset"], i < 8 ? i : i - 8);
    if (i < 8) continue;
    EXPECT_NEAR(score["logprob"].get<float>(), (*alone)[i - 8], 1e-5);
  }
  EXPECT_EQ(text, "one textanother");
}

TEST(Score, RefusesAFileThatIsNotText) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const std::string zstd("\x28\xb5\x2f\xfd and so on", 14), npy("\x93NUMPY\1\0v\0{", 11);
  std::ofstream(dir / "scores.jsonl") << "older";
  for (const auto& [name, content, why] : std::vector<std::array<std::string, 3>>{
           {"text.jsonl", zstd, "is a Zstandard archive, not text; give its name the ending .zst"},
           {"text.txt", zstd, "is a Zstandard archive"},
           {"tokens.npy", npy, "is a NumPy .npy array, not text"},
           {"text.gz", "no archive", "text.gz"},
           {"bad.jsonl", "{\"body\": 1}", "bad.jsonl:1: no field 'text'"}}) {
    std::ofstream(dir / name, std::ios::binary) << content;
    const auto refused = ScoreFile(*trained, {dir / name}, dir / "scores.jsonl");
    EXPECT_FALSE(refused.ok()) << name;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(why));
  }
  EXPECT_EQ(*ReadWholeFile(dir / "scores.jsonl"), "older");
}

TEST(Score, WithoutRoomTheOldScoresStay) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  std::ofstream(dir / "text.txt") << std::string(2'000, 'a');
  std::ofstream(dir / "scores.jsonl") << "older";
  absl::Status status;
  {
    const FileSizeLimit limit(10'000);
    status = ScoreFile(*trained, {dir / "text.txt"}, dir / "scores.jsonl").status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("scores.jsonl: cannot be written: File too large; free")));
  EXPECT_EQ(*ReadWholeFile(dir / "scores.jsonl"), "older");
}

TEST(Score, RefusesAFileWithoutATokenToPredict) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  std::ofstream(dir / "scores.jsonl") << "older";
  for (const auto& [name, content] : std::vector<std::array<std::string, 2>>{
           {"empty.txt", ""}, {"empty.jsonl", ""}, {"texts.jsonl", "{\"text\": \"\"}\n\n"}}) {
    std::ofstream(dir / name, std::ios::binary) << content;
    EXPECT_THAT(ScoreFile(*trained, {dir / name}, dir / "scores.jsonl"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(name + ": 0 tokens to predict (at least 1); name a file")));
  }
  EXPECT_EQ(*ReadWholeFile(dir / "scores.jsonl"), "older");
}

TEST(TrainedModel, OfTokenFilesNeedsTheTokenizerThatWroteThem) {
  const auto load = [](const std::function<void(v1::JobSpec*)>& edit) {
    const TempDir dir;
    SaveSmallModel(dir, [&](v1::JobSpec* spec) {
      spec->mutable_data()->set_source(v1::DATA_SOURCE_TOKENS);
      edit(spec);
    });
    return TrainedModel::Load(dir.path()).status();
  };
  EXPECT_OK(load([](v1::JobSpec*) {})) << "bytes as tokens, as the job says";
  EXPECT_OK(load([](v1::JobSpec* spec) { spec->mutable_data()->set_separator("none"); }));
  EXPECT_THAT(
      load([](v1::JobSpec* spec) { spec->mutable_data()->clear_tokenizer(); }),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("data.tokenizer: not set")));
  EXPECT_THAT(load([](v1::JobSpec* spec) { spec->mutable_model()->set_vocab(50257); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("data.tokenizer: byte")));
  EXPECT_THAT(load([](v1::JobSpec* spec) { spec->mutable_data()->set_separator("7"); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("data.separator: 7")));
}

TEST(TrainedModel, IsFoundByFolderLinkOrOutDirAndVerified) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  EXPECT_EQ(trained->state().step(), 5);
  const auto checkpoints = CheckpointsDir(dir.path());
  EXPECT_OK(TrainedModel::Load(checkpoints / "latest.ckpt"));
  EXPECT_OK(TrainedModel::Load(checkpoints / "step-00000005"));
  EXPECT_THAT(TrainedModel::Load(checkpoints / "step-00000006"),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(TrainedModel::Load(checkpoints),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no checkpoint")));
  std::ofstream(checkpoints / "step-00000005" / "model.safetensors", std::ios::app) << "x";
  EXPECT_THAT(TrainedModel::Load(checkpoints / "latest.ckpt"),
              StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace nsa::train
