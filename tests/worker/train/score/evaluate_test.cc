#include "worker/train/score/evaluate.h"

#include <cmath>
#include <fstream>
#include <numeric>
#include <string>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/score/small_trained.h"

namespace nsa::train {
namespace {

TEST(Evaluate, IsTheSumOfTheScoresByTheTokensSeen) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  const std::string text = "The first forty bytes of a text, and then some more of them.";  // 60
  const auto scores = ScoreTokens(*trained, Bytes(text));
  ASSERT_OK(scores);
  Scorer scorer(trained.get());
  Evaluation evaluation;
  ASSERT_OK(AddDocument(text, &scorer, &evaluation));
  const auto sum = [&](size_t from, size_t to) {
    return -std::accumulate(scores->begin() + static_cast<ptrdiff_t>(from),
                            scores->begin() + static_cast<ptrdiff_t>(to), 0.0);
  };
  EXPECT_EQ(evaluation.all.tokens, 60);
  EXPECT_EQ(evaluation.all.bytes, 60);
  EXPECT_NEAR(evaluation.all.nats, sum(0, 60), 1e-4);
  // Windows of 32 tokens: byte i < 32 sees i + 1 tokens. Bytes 32 to 47 are scored in a window that
  // begins at 16, bytes 48 to 59 in one that begins at 32: they see 17 to 32 tokens.
  ASSERT_EQ(evaluation.by_context.size(), 6u);
  const auto is = [&](size_t bucket, int64_t tokens, double nats) {
    EXPECT_EQ(evaluation.by_context[bucket].tokens, tokens) << bucket;
    EXPECT_NEAR(evaluation.by_context[bucket].nats, nats, 1e-4) << bucket;
  };
  is(0, 1, sum(0, 1));
  is(1, 2, sum(1, 3));
  is(2, 4, sum(3, 7));
  is(3, 8, sum(7, 15));
  is(4, 16 + 15 + 12, sum(15, 31) + sum(32, 47) + sum(48, 60));
  is(5, 2, sum(31, 32) + sum(47, 48));
}

TEST(Evaluate, CountsEveryDocumentOfAFile) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  std::ofstream(dir / "text.jsonl") << "{\"text\": \"one text\"}\n{\"text\": \"another\"}\n";
  const auto evaluation = EvaluateFile(*trained, {dir / "text.jsonl"});
  ASSERT_OK(evaluation);
  EXPECT_EQ(evaluation->all.tokens, 15);
  EXPECT_EQ(evaluation->by_context[0].tokens, 2) << "the first byte of each";
  EXPECT_THAT(EvaluateFile(*trained, {dir / "absent.txt"}), StatusIs(absl::StatusCode::kNotFound));
}

TEST(Evaluate, ReadsTheFieldThatTheModelWasTrainedOnOrAnother) {
  v1::JobSpec spec;
  EXPECT_EQ(ReadingOf({"a.jsonl"}, spec).text_field, "text");
  spec.mutable_data()->set_text_field("body");
  EXPECT_EQ(ReadingOf({"a.jsonl"}, spec).text_field, "body");
  EXPECT_EQ(ReadingOf({"a.jsonl", "title"}, spec).text_field, "title");
}

TEST(Evaluate, RefusesAFileWithoutATokenToPredict) {
  const TempDir dir;
  const auto trained = SmallModel(dir);
  std::ofstream(dir / "empty.txt").flush();
  std::ofstream(dir / "texts.jsonl") << "{\"text\": \"\"}\n";
  for (const std::string name : {"empty.txt", "texts.jsonl"}) {
    EXPECT_THAT(EvaluateFile(*trained, {dir / name}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::HasSubstr(name + ": 0 tokens to predict (at least 1)")));
  }
}

TEST(Evaluate, IsShownInLossPerplexityBitsAndByContext) {
  Evaluation evaluation;
  evaluation.all = {.bytes = 8, .tokens = 4, .nats = 4 * std::log(16.0)};
  evaluation.by_context = {{1, 4}, {2, 5}, {}, {1, 0.25}};
  EXPECT_EQ(EvaluationText(evaluation),
            "8 bytes, 4 tokens\n"
            "loss 2.7726 nats a token, perplexity 16, 2.0000 bits a byte\n"
            "tokens seen       tokens  loss\n"
            "1                      1  4.0000\n"
            "2-3                    2  2.5000\n"
            "8-15                   1  0.2500\n");
  const nlohmann::ordered_json document = EvaluationDocument(evaluation, 5000);
  EXPECT_EQ(document["step"], 5000);
  EXPECT_EQ(document["tokens"], 4);
  EXPECT_DOUBLE_EQ(document["loss_nats_per_token"], std::log(16.0));
  EXPECT_DOUBLE_EQ(document["bits_per_byte"], 2);
  EXPECT_EQ(document["by_context"].size(), 3u);
  EXPECT_EQ(
      document["by_context"][2].dump(),
      R"({"least_tokens_seen":8,"most_tokens_seen":15,"tokens":1,"loss_nats_per_token":0.25})");
}

}  // namespace
}  // namespace nsa::train
