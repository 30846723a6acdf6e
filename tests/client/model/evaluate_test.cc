// nsactl eval, needle and data needle with the worker that they start.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <numbers>

#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"
#include "tests/client/model/trained_model_in_folder.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using EvaluateTest = TrainedModelInFolder;

TEST_F(EvaluateTest, PrintsWhatTheWorkerMeasures) {
  const Ran worker = Run({"nsa-worker", "eval", "artifacts/tiny", "val.txt"});
  EXPECT_EQ(worker.exit.code, 0) << worker.said;
  EXPECT_THAT(worker.said, AllOf(StartsWith("step 2, 44 bytes"), HasSubstr("bits a byte")));
  const Ran ran = Run({"nsactl", "eval", "artifacts/tiny", "--data", "val.txt"});
  EXPECT_EQ(ran.exit.code, 0);
  EXPECT_EQ(ran.said, worker.said);
}

TEST_F(EvaluateTest, WithoutAFileMeasuresTheValidationSetsOfTheJob) {
  const Ran ran = Run({"nsactl", "eval", "artifacts/tiny"});
  EXPECT_EQ(ran.exit.code, 0) << ran.said;
  EXPECT_THAT(ran.said,
              StartsWith("step 2, loss in nats a token\ntokens seen      validation\n1 "));
  const auto sets = nlohmann::json::parse(
      Run({"nsactl", "eval", "artifacts/tiny", "-o", "json"}).said, nullptr, false);
  const auto file = nlohmann::json::parse(
      Run({"nsactl", "eval", "artifacts/tiny", "--data", "val.txt", "-o", "json"}).said, nullptr,
      false);
  ASSERT_TRUE(sets.is_object() && file.is_object());
  EXPECT_EQ(sets["sets"][0]["name"], "validation");
  EXPECT_EQ(sets["sets"][0]["by_context"], file["by_context"]);
}

TEST_F(EvaluateTest, MeasuresNeedlesAndKeepsTheCounts) {
  const Ran ran = Run({"nsactl", "needle", "artifacts/tiny", "--lengths", "130,160", "--depths",
                       "2", "--trials", "3", "--csv", "needle.csv"});
  EXPECT_EQ(ran.exit.code, 0) << ran.said;
  EXPECT_THAT(
      ran.said,
      AllOf(StartsWith("130 tokens: 0 of 6 answers found\n160 tokens: 0 of 6 answers found\n"),
            EndsWith("depth      130      160\n"
                     "   0%       0%       0%\n"
                     " 100%       0%       0%\n")));
  EXPECT_EQ(ReadWholeFile(dir_ / "needle.csv").value_or(""),
            "length,depth,found,trials,task\n130,0,0,3,key\n130,1,0,3,key\n160,0,0,3,key\n"
            "160,1,0,3,key\n");
}

TEST_F(EvaluateTest, PrintsDocumentsForPrograms) {
  const Ran eval =
      Run({"nsactl", "eval", "artifacts/tiny", "--data", "val.txt", "--output", "json"});
  EXPECT_EQ(eval.exit.code, 0) << eval.said;
  const auto numbers = nlohmann::json::parse(eval.said, nullptr, false);
  ASSERT_TRUE(numbers.is_object()) << eval.said;
  EXPECT_EQ(numbers["step"], 2);
  EXPECT_EQ(numbers["bytes"], 44);
  const double loss = numbers["loss_nats_per_token"];
  EXPECT_NEAR(numbers["perplexity"].get<double>(), std::exp(loss), 1e-9);
  EXPECT_NEAR(numbers["bits_per_byte"].get<double>(),
              loss * numbers["tokens"].get<double>() / 44 / std::numbers::ln2, 1e-9);
  EXPECT_EQ(numbers["by_context"][0]["least_tokens_seen"], 1);
  const Ran yaml = Run({"nsactl", "eval", "artifacts/tiny", "--data", "val.txt", "-o", "yaml"});
  EXPECT_THAT(yaml.said, StartsWith("step: 2\nbytes: 44\n"));

  const Ran needle = Run({"nsactl", "needle", "artifacts/tiny", "--lengths", "130", "--depths", "2",
                          "--trials", "3", "--csv", "n.csv", "-o", "json"});
  EXPECT_EQ(needle.exit.code, 0) << needle.said;
  // Standard error, which has the progress, is in the same file.
  EXPECT_THAT(needle.said, StartsWith("130 tokens: 0 of 6 answers found\n{"));
  const auto cells =
      nlohmann::json::parse(needle.said.substr(needle.said.find('{')), nullptr, false);
  EXPECT_EQ(cells, nlohmann::json::parse(R"({"step": 2, "task": "key", "cells": [
      {"context_tokens": 130, "depth_ratio": 0.0, "found": 0, "trials": 3},
      {"context_tokens": 130, "depth_ratio": 1.0, "found": 0, "trials": 3}]})"));
  EXPECT_THAT(ReadWholeFile(dir_ / "n.csv").value_or(""), StartsWith("length,depth"));
}

TEST_F(EvaluateTest, WritesDocumentsThatAWorkerTrainsOn) {
  std::vector<std::string> words = {"nsactl", "data",    "needle", "--documents",
                                    "20",     "--bytes", "150"};
  EXPECT_EQ(Run(words).exit.code, 0);
  words.insert(words.end(), {"--filler", "text.txt"});
  const Ran refused = Run(words);
  EXPECT_EQ(refused.exit.code, 2);
  EXPECT_THAT(refused.said, HasSubstr("text.txt: filler: 18 words"));
  std::ofstream(dir_ / "needle.yaml")
      << "name: needle\n"
         "model: {dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}\n"
         "nsa: {l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}\n"
         "data: {source: jsonl, path: needle.jsonl, val_fraction: 0.2, tokenizer: byte}\n"
         "train: {steps: 2, seq_len: 32, batch_size: 2}\n";
  const Ran inspected = Run({"nsactl", "data", "inspect", "needle.jsonl"});
  EXPECT_THAT(inspected.said, HasSubstr("20")) << inspected.said;
  const Ran trained = Run({"nsa-worker", "--job", "needle.yaml"});
  EXPECT_EQ(trained.exit.code, 0) << trained.said;
}

TEST_F(EvaluateTest, EveryTaskIsWrittenAndMeasured) {
  const std::vector<std::pair<const char*, const char*>> hidden = {{"key", "The pass key is "},
                                                                   {"keys", "The pass key of "},
                                                                   {"values", "One pass key of "},
                                                                   {"trace", "VAR "},
                                                                   {"count", "The word is "}};
  for (const auto& [task, sentence] : hidden) {
    const Ran data = Run({"nsactl", "data", "needle", "--task", task, "--documents", "2", "--bytes",
                          "255", "--out", "task.jsonl"});
    EXPECT_EQ(data.exit.code, 0) << data.said;
    EXPECT_THAT(ReadWholeFile(dir_ / "task.jsonl").value_or(""),
                HasSubstr(std::string("\\n") + sentence));
    const Ran ran = Run({"nsactl", "needle", "artifacts/tiny", "--task", task, "--lengths", "256",
                         "--depths", "1", "--trials", "1"});
    EXPECT_EQ(ran.exit.code, 0) << ran.said;
    EXPECT_THAT(ran.said, HasSubstr(std::string(", task ") + task + ": share of answers found"));
  }
}

TEST_F(EvaluateTest, RefusesWithTheExitCodesOfNsactl) {
  EXPECT_EQ(Run({"nsactl", "needle", "artifacts/none"}).exit.code, 3);
  EXPECT_EQ(Run({"nsactl", "eval", "artifacts/tiny", "--data", "none.txt", "-o", "json"}).exit.code,
            2);
  const Ran json = Run({"nsa-worker", "score", "artifacts/tiny", "val.txt", "--json", "x"});
  EXPECT_EQ(json.exit.code, 2);
  EXPECT_THAT(json.said, HasSubstr("--json"));
  const Ran seeded = Run({"nsa-worker", "eval", "artifacts/tiny", "val.txt", "--seed", "3"});
  EXPECT_EQ(seeded.exit.code, 2);
  EXPECT_THAT(seeded.said, HasSubstr("--seed"));
  const Ran task = Run({"nsa-worker", "needle", "artifacts/tiny", "--task", "word"});
  EXPECT_EQ(task.exit.code, 2);
  EXPECT_THAT(task.said, HasSubstr("--task: 'word' (must be key, keys, values, trace or count)"));
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"eval", "artifacts/tiny", "--text-field", "body"}, "--text-field: without --data"},
      {{"needle", "artifacts/tiny", "--trials", "0"}, "--trials"},
      {{"needle", "artifacts/tiny", "--lengths", "many"}, "--lengths"},
      {{"needle", "artifacts/tiny", "--task", "word"}, "--task: 'word' (must be key, keys, "},
      {{"data", "needle", "--bytes", "127"}, "--bytes"},
      {{"data", "needle", "--bytes", "254", "--task", "count"},
       "bytes of a document: 254 (from 255 to 16777216 for the task count); choose a number"}};
  for (const auto& [words, why] : wrong) {
    std::vector<std::string> all = {"nsactl"};
    all.insert(all.end(), words.begin(), words.end());
    const Ran ran = Run(all);
    EXPECT_EQ(ran.exit.code, 2) << words[0];
    EXPECT_THAT(ran.said, HasSubstr(why));
  }
}

}  // namespace
}  // namespace nsa::client
