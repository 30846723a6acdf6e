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

// The job of the model has these files in val_path, and this set "notes".
std::unique_ptr<TrainedModel> WithSets(const TempDir& dir, const std::vector<std::string>& val_path,
                                       const std::string& notes,
                                       v1::LossOn loss_on = v1::LOSS_ON_UNSPECIFIED) {
  SaveSmallModel(dir, [&](v1::JobSpec* spec) {
    v1::DataSpec* const data = spec->mutable_data();
    for (const std::string& path : val_path) data->add_val_path(path);
    if (!notes.empty()) (*data->mutable_val())["notes"] = notes;
    data->set_loss_on(loss_on);
  });
  auto trained = TrainedModel::Load(dir.path());
  EXPECT_OK(trained);
  return *std::move(trained);
}

TEST(EvaluateSets, MeasuresTheFilesOfValPathTogetherAndEachNamedSet) {
  const TempDir dir;
  std::ofstream(dir / "one.txt") << "the first text";
  std::ofstream(dir / "two.txt") << "and another";
  std::ofstream(dir / "notes-1.jsonl") << "{\"text\": \"a note\"}\n";
  const auto trained = WithSets(dir, {dir / "one.txt", dir / "two.txt"}, dir / "notes-*.jsonl");
  const auto sets = EvaluateSets(*trained);
  ASSERT_OK(sets);
  ASSERT_EQ(sets->size(), 2u);
  const auto one = EvaluateFile(*trained, {dir / "one.txt"});
  const auto two = EvaluateFile(*trained, {dir / "two.txt"});
  const auto note = EvaluateFile(*trained, {dir / "notes-1.jsonl"});
  EXPECT_EQ((*sets)[0].name, "validation");
  EXPECT_EQ((*sets)[0].evaluation.all.tokens, 25);
  EXPECT_DOUBLE_EQ((*sets)[0].evaluation.all.nats, one->all.nats + two->all.nats);
  EXPECT_EQ((*sets)[0].evaluation.by_context[0].tokens, 2);
  EXPECT_EQ((*sets)[1].name, "notes");
  EXPECT_EQ((*sets)[1].evaluation.all.nats, note->all.nats);
}

TEST(EvaluateSets, CountTheRecordsThatPassTheirFilter) {
  const TempDir dir;
  std::ofstream(dir / "notes.jsonl") << "{\"book\": \"a\", \"text\": \"a note\"}\n"
                                        "{\"book\": \"b\", \"text\": \"another note\"}\n"
                                        "{\"book\": \"b\"}\n";
  const auto sets_with = [&](const std::string& book) {
    const TempDir model;
    SaveSmallModel(model, [&](v1::JobSpec* spec) {
      v1::DataSpec& data = *spec->mutable_data();
      data.set_source(v1::DATA_SOURCE_JSONL);
      data.add_val_path(dir / "notes.jsonl");
      (*data.mutable_except())["book"].add_value("b");
      (*data.mutable_val())["notes"] = dir / "notes.jsonl";
      (*(*data.mutable_val_where())["notes"].mutable_field())["book"].add_value(book);
    });
    const auto trained = TrainedModel::Load(model.path());
    EXPECT_OK(trained);
    return EvaluateSets(**trained);
  };
  const auto sets = sets_with("a");
  ASSERT_OK(sets);
  ASSERT_EQ(sets->size(), 2u);
  for (const EvaluatedSet& set : *sets) {
    EXPECT_EQ(set.evaluation.all.tokens, 6) << set.name;
  }
  EXPECT_THAT(sets_with("c"), StatusIs(absl::StatusCode::kInvalidArgument,
                                       testing::HasSubstr("data.val_where.notes.book: none of 3 "
                                                          "records has the value 'c'")));
}

TEST(EvaluateSets, RefusesWhatIsNoTextOfThisMachineByItsKey) {
  const TempDir dir;
  std::ofstream(dir / "notes.jsonl") << "{}\n";
  const auto refused = [&](const std::string& notes, v1::LossOn loss_on = v1::LOSS_ON_ALL) {
    const TempDir model;
    return std::string(EvaluateSets(*WithSets(model, {}, notes, loss_on)).status().message());
  };
  EXPECT_EQ(refused("https://host/notes.txt"),
            "data.val.notes: https://host/notes.txt (text, JSON lines or Parquet on this machine); "
            "name such a file");
  EXPECT_THAT(refused(dir / "notes.tokens"), testing::StartsWith("data.val.notes: "));
  EXPECT_THAT(refused(dir / "notes.jsonl", v1::LOSS_ON_ASSISTANT),
              testing::HasSubstr("notes.jsonl has conversations (text"));
  EXPECT_THAT(refused(dir / "*.none"), testing::HasSubstr("*.none"));
  EXPECT_THAT(refused(""), testing::StartsWith("data.val_path, data.val: none"));
}

TEST(EvaluateSets, AreShownBesideEachOther) {
  const ScoreSummary all = {.bytes = 8, .tokens = 4, .nats = 4 * std::log(16.0)};
  const std::vector<EvaluatedSet> sets = {{"validation", {all, {{1, 4}, {2, 5}, {}, {1, 0.25}}}},
                                          {"books-of-others", {{2, 1, 3}, {{1, 3}}}}};
  EXPECT_EQ(SetsText(sets),
            "tokens seen      validation  books-of-others\n"
            "1                    4.0000           3.0000\n"
            "2-3                  2.5000                -\n"
            "8-15                 0.2500                -\n"
            "all                  2.7726           3.0000\n"
            "bits a byte          2.0000           2.1640\n"
            "tokens                    4                1\n");
  const nlohmann::ordered_json document = SetsDocument(sets, 7);
  EXPECT_EQ(document["step"], 7);
  EXPECT_EQ(document["sets"][0]["by_context"].size(), 3u);
  EXPECT_EQ(document["sets"][1]["name"], "books-of-others");
  EXPECT_EQ(document["sets"][1]["loss_nats_per_token"], 3);
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
