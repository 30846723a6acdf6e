// nsactl import hf://… with a server in place of the Hub: the checkpoint is that of the folder.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"
#include "tests/client/model/programs_in_folder.h"
#include "tests/testing/net/hub_model.h"
#include "tests/worker/train/checkpoint/foreign_folder.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "hf_secret";

class ImportHubTest : public ProgramsInFolder {
 protected:
  void SetUp() override {
    nlohmann::json config = train::ForeignConfig("LlamaForCausalLM", "llama");
    config["max_position_embeddings"] = 64;
    train::ForeignFolder(config).Write(dir_ / "model", TensorType::kBf16, /*shards=*/3);
    std::ofstream(dir_ / "model" / "tokenizer.json")
        << R"({"model": {"vocab": {"a": 0, "</s>": 1}}})";
    for (const auto& entry : fs::directory_iterator(dir_ / "model")) {
      hub_.files[entry.path().filename()] = ReadWholeFile(entry.path()).value_or("");
    }
    environment_["HF_ENDPOINT"] = server_.url("/");
    environment_["HF_TOKEN"] = kToken;
    environment_["NSA_DATA_CACHE_DIR"] = (dir_ / "cache").string();
  }

  Ran Import(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"nsactl", "import", "hf://o/n", "checkpoint"};
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  }

  std::string Weights(const char* checkpoint) {
    return ReadWholeFile(dir_ / checkpoint / "model.safetensors").value_or("");
  }

  // Names in the folder, apart from the log.
  std::vector<std::string> Left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      if (entry.path().filename() != "log") names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  HubModel hub_;
  std::atomic<int> weights_ = 0;  // requests for them
  DataServer server_{[this](const DataServer::Request& request) {
    weights_ += request.target.find("/model-0") == std::string::npos ? 0 : 1;
    if (request.header("authorization") != absl::StrCat("Bearer ", kToken)) {
      return DataServer::Reply{.status = 401};
    }
    return hub_.Answer(request);
  }};
};

TEST_F(ImportHubTest, MakesTheCheckpointOfTheFolderAndLeavesNothingElse) {
  const Ran ran = Import();
  ASSERT_EQ(ran.exit.code, 0) << ran.said;
  EXPECT_THAT(ran.said,
              AllOf(HasSubstr("checkpoint: step 0, "), HasSubstr("widened from 16 bits"),
                    HasSubstr("hf://o/n is at commit " + hub_.commit),
                    HasSubstr("model-00003-of-00003.safetensors: "), Not(HasSubstr(kToken))));
  EXPECT_THAT(Left(), ElementsAre("cache", "checkpoint", "model"));
  EXPECT_TRUE(fs::exists(dir_ / "checkpoint" / "tokenizer.json"));
  const Ran folder = Run({"nsactl", "import", "model", "of-folder"});
  ASSERT_EQ(folder.exit.code, 0) << folder.said;
  EXPECT_FALSE(Weights("checkpoint").empty());
  EXPECT_EQ(Weights("checkpoint"), Weights("of-folder"));
}

TEST_F(ImportHubTest, SaysTheCommitInJsonAndConverts) {
  const Ran ran = Import({"--attention", "nsa", "--layers", "sel", "--set", "nsa.l=8", "--set",
                          "nsa.d=4", "--set", "nsa.l_sel=8", "--set", "nsa.n_sel=3", "-o", "json"});
  ASSERT_EQ(ran.exit.code, 0) << ran.said;
  const auto document = nlohmann::json::parse(ran.said.substr(ran.said.find("\n{") + 1));
  EXPECT_EQ(document["commit"], hub_.commit);
  EXPECT_EQ(document["converted"], true);
}

TEST_F(ImportHubTest, WhatNoWeightsCanMendIsRefusedBeforeTheyAreFetched) {
  nlohmann::json config = nlohmann::json::parse(hub_.files["config.json"]);
  config["hidden_act"] = "gelu";
  hub_.files["config.json"] = config.dump();
  const Ran ran = Import();
  EXPECT_EQ(ran.exit.code, 2) << ran.said;
  EXPECT_THAT(ran.said, AllOf(HasSubstr("hidden_act"), Not(HasSubstr("nsa-unfinished"))));
  EXPECT_EQ(weights_, 0);
  EXPECT_THAT(Left(), ElementsAre("cache", "model"));
}

TEST_F(ImportHubTest, ADamagedWeightFileIsNamed) {
  const std::string name = "model-00002-of-00003.safetensors";
  hub_.files[name].resize(40);
  const Ran ran = Import();
  EXPECT_NE(ran.exit.code, 0) << ran.said;
  EXPECT_THAT(ran.said, AllOf(HasSubstr("nsactl: " + name + ": not a safetensors file"),
                              Not(HasSubstr("nsa-unfinished"))));
  EXPECT_THAT(Left(), ElementsAre("cache", "model"));
}

TEST_F(ImportHubTest, ARepositoryThatMayNotBeReadIsRefusedWithWhatToSet) {
  environment_.erase("HF_TOKEN");
  environment_["HF_TOKEN_PATH"] = "";
  const Ran ran = Import();
  EXPECT_EQ(ran.exit.code, 2) << ran.said;
  EXPECT_THAT(ran.said,
              AllOf(HasSubstr("hf://o/n: HTTP 401 (not allowed)"), HasSubstr("set HF_TOKEN")));
}

TEST_F(ImportHubTest, AnotherUrlIsRefusedWithoutARequest) {
  for (const char* url : {"hf://o", "hf://datasets/o/n", "hf://o/n/config.json", "https://o/n"}) {
    const Ran ran = Run({"nsactl", "import", url, "checkpoint"});
    EXPECT_EQ(ran.exit.code, 2) << ran.said;
    EXPECT_THAT(ran.said, AllOf(HasSubstr(url), HasSubstr("hf://OWNER/NAME[@REVISION]")));
  }
  EXPECT_TRUE(server_.seen().empty());
}

}  // namespace
}  // namespace nsa::client
