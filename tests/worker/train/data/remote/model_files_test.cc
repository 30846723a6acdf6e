// Models of the Hub: which files are fetched, what is refused, and what an interruption costs.
#include "worker/train/data/remote/model_files.h"

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/net/hub_model.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/remote/remote_fixture.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Request = DataServer::Request;
using Reply = DataServer::Reply;

const std::string kCommit(40, 'c');
constexpr char kToken[] = "hf_secret";
constexpr char kUrl[] = "hf://o/n";
constexpr char kConfig[] = R"({"model_type": "llama"})";

std::string IndexOf(const std::vector<nlohmann::json>& names) {
  nlohmann::json map = nlohmann::json::object();
  for (size_t i = 0; i < names.size(); ++i) map[absl::StrCat("tensor", i)] = names[i];
  return nlohmann::json{{"weight_map", map}}.dump();
}

// A repository of two shards, with files that an import does not read.
class ModelFiles : public testing::Test {
 protected:
  ModelFiles() {
    const std::string first = "model-00001-of-00002.safetensors";
    const std::string second = "model-00002-of-00002.safetensors";
    files_ = {{"config.json", kConfig},
              {"tokenizer.json", "{}"},
              {"tokenizer_config.json", "{\"a\": 1}"},
              {"model.safetensors.index.json", IndexOf({first, second})},
              {first, Content(3500)},
              {second, Content(2500)},
              {"pytorch_model.bin", "pickle"},
              {"README.md", "text"}};
  }

  RemoteOptions Options() const {
    RemoteOptions options = QuickOptions();
    options.endpoint = server_.url("");
    options.token = kToken;
    return options;
  }

  absl::StatusOr<std::string> Fetch(ModelPart part, const std::string& url = kUrl) {
    return FetchModel(url, folder_.path(), part, Options());
  }

  absl::Status FetchBoth(const RemoteOptions& options) {
    for (const ModelPart part : {ModelPart::kDescription, ModelPart::kWeights}) {
      const auto commit = FetchModel(kUrl, folder_.path(), part, options);
      if (!commit.ok()) return commit.status();
    }
    return absl::OkStatus();
  }

  std::vector<std::string> Fetched() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string Text(const std::string& name) const {
    return ReadWholeFile(folder_ / name).value_or("absent");
  }

  // Requests whose target has this in it.
  int Asked(const std::string& part) {
    const auto seen = server_.seen();
    return static_cast<int>(std::ranges::count_if(
        seen, [&](const Request& one) { return one.target.find(part) != std::string::npos; }));
  }

  Reply Answer(const Request& request) const {
    if (status_ != 200) return {.status = status_};
    if (!gone_.empty() && request.target.ends_with("/" + gone_)) return {.status = 404};
    Reply reply = hub_.Answer(request);
    if (!refused_.empty() && request.target.ends_with("/" + refused_) &&
        request.header("range") == "bytes=1000-1999") {
      return {.status = 403};
    }
    if (cut_ && reply.status == 206 && reply.body.size() > 600) {
      reply.promised = std::ssize(reply.body);
      reply.body.resize(600);
    }
    return reply;
  }

  HubModel hub_;
  std::map<std::string, std::string>& files_ = hub_.files;
  std::string gone_;     // listed and not there
  std::string refused_;  // its second block
  bool cut_ = false;     // every answer breaks off
  int status_ = 200;
  const TempDir folder_;
  DataServer server_{[this](const Request& request) { return Answer(request); }};
};

TEST_F(ModelFiles, AreTheDescriptionFirstAndThenTheShards) {
  EXPECT_EQ(Fetch(ModelPart::kDescription).value_or(""), kCommit);
  EXPECT_THAT(Fetched(), ElementsAre("config.json", "model.safetensors.index.json",
                                     "tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(Asked("/model-0"), 0) << "no weights yet";
  EXPECT_OK(Fetch(ModelPart::kWeights, absl::StrCat(kUrl, "@", kCommit)));
  EXPECT_EQ(Text("config.json"), kConfig);
  EXPECT_EQ(Text("model-00001-of-00002.safetensors"), Content(3500));
  EXPECT_EQ(Text("model-00002-of-00002.safetensors"), Content(2500));
  EXPECT_EQ(Asked(".bin"), 0);
  EXPECT_EQ(Asked("README"), 0);
  EXPECT_EQ(Asked("/revision/"), 1) << "a commit is not asked for";
  for (const Request& request : server_.seen()) {
    EXPECT_EQ(request.header("authorization"), "Bearer hf_secret");
  }
}

TEST_F(ModelFiles, OfALostConnectionKeepWhatArrived) {
  cut_ = true;
  EXPECT_OK(FetchBoth(Options()));
  EXPECT_EQ(Text("model-00001-of-00002.safetensors"), Content(3500));
  int from_the_middle = 0;
  for (const Request& request : server_.seen()) {
    from_the_middle += request.header("range") == "bytes=600-999" ? 1 : 0;
  }
  EXPECT_EQ(from_the_middle, 2) << "once a shard";
}

TEST_F(ModelFiles, AfterAnInterruptionOnlyTheRestIsFetched) {
  const TempDir cache;
  RemoteOptions options = Options();
  options.cache = cache.path();
  refused_ = "model-00002-of-00002.safetensors";
  EXPECT_THAT(FetchBoth(options), StatusIs(absl::StatusCode::kPermissionDenied,
                                           HasSubstr("model-00002-of-00002.safetensors")));
  EXPECT_EQ(Text(refused_), "absent") << "nothing half written";
  refused_.clear();
  fs::remove_all(folder_.path());
  fs::create_directory(folder_.path());
  const size_t before = server_.seen().size();
  EXPECT_OK(FetchBoth(options));
  EXPECT_EQ(Text("model-00002-of-00002.safetensors"), Content(2500));
  const std::vector<Request> seen = server_.seen();
  for (size_t i = before; i < seen.size(); ++i) {
    const Request& request = seen[i];
    if (request.target.find("model-00001") == std::string::npos) continue;
    EXPECT_EQ(request.header("range"), "bytes=0-0") << "only its version is asked for";
  }
}

TEST_F(ModelFiles, ThatAreMissingAreNamedBeforeAnyShardIsFetched) {
  files_.erase("model-00002-of-00002.safetensors");
  EXPECT_THAT(FetchBoth(Options()),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("hf://o/n: has no model-00002-of-00002.safetensors")));
  EXPECT_EQ(Asked("model-0000"), 0);
  files_.erase("config.json");
  EXPECT_THAT(Fetch(ModelPart::kDescription),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("hf://o/n: has no config.json")));
}

TEST_F(ModelFiles, ThatAreListedAndNotThereAreNamed) {
  gone_ = "config.json";
  EXPECT_THAT(
      Fetch(ModelPart::kDescription),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("hf://o/n/config.json: HTTP 404"),
                                                  HasSubstr("correct the name or the revision"))));
  EXPECT_THAT(Fetched(), IsEmpty());
}

TEST_F(ModelFiles, OfARepositoryWithoutSafetensorsAreRefused) {
  std::erase_if(
      files_, [](const auto& file) { return file.first.find("safetensors") != std::string::npos; });
  EXPECT_THAT(Fetch(ModelPart::kDescription),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("hf://o/n: has pytorch_model.bin and no safetensors")));
  files_.erase("pytorch_model.bin");
  EXPECT_THAT(Fetch(ModelPart::kDescription),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no model.safetensors")));
  EXPECT_EQ(Asked("/resolve/"), 0);
}

TEST_F(ModelFiles, OfAnotherFamilyNeedATokenizerAndOursDoNot) {
  files_.erase("tokenizer.json");
  EXPECT_THAT(Fetch(ModelPart::kDescription),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no tokenizer.json")));
  fs::remove(folder_ / "config.json");
  files_["config.json"] = R"({"model_type": "nsa"})";
  EXPECT_OK(Fetch(ModelPart::kDescription));
}

TEST_F(ModelFiles, StayInTheFolderWhateverTheIndexNames) {
  for (const nlohmann::json& name :
       {nlohmann::json("../outside.safetensors"), nlohmann::json("/tmp/outside.safetensors"),
        nlohmann::json("onnx/a.safetensors"), nlohmann::json(".."), nlohmann::json("config.json"),
        nlohmann::json("a\n.safetensors"), nlohmann::json(7), nlohmann::json::array()}) {
    for (const std::string& fetched : Fetched()) fs::remove(folder_ / fetched);
    files_["model.safetensors.index.json"] = IndexOf({name});
    EXPECT_THAT(FetchBoth(Options()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("hf://o/n: model.safetensors.index.json: weight_map"),
                               HasSubstr("names of .safetensors files in the folder"))))
        << name;
    EXPECT_EQ(Fetched().size(), 4u);
  }
  EXPECT_FALSE(fs::exists(folder_.path().parent_path() / "outside.safetensors"));
  EXPECT_EQ(Asked("outside"), 0);
}

TEST_F(ModelFiles, ThatAreNotTheListedOnesAreRemoved) {
  hub_.hashes["model-00001-of-00002.safetensors"] = std::string(64, 'a');
  EXPECT_THAT(FetchBoth(Options()),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("hf://o/n/model-00001-of-00002.safetensors: SHA-256 " +
                                 HubModel::Sha256(Content(3500)) + " (the Hub lists aaaa")));
  EXPECT_EQ(Text("model-00001-of-00002.safetensors"), "absent");
  for (const std::string& fetched : Fetched()) fs::remove(folder_ / fetched);
  hub_.sizes["config.json"] = 7;
  EXPECT_THAT(
      Fetch(ModelPart::kDescription),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("config.json: 23 bytes (the Hub lists 7)")));
}

TEST_F(ModelFiles, ThatNeedATokenSayHowToSetOne) {
  status_ = 401;
  EXPECT_THAT(Fetch(ModelPart::kDescription),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("hf://o/n: HTTP 401 (not allowed)"),
                             HasSubstr("the token in HF_TOKEN must be valid"),
                             HasSubstr("accepted its terms"), Not(HasSubstr(kToken)))));
  status_ = 403;
  RemoteOptions options = Options();
  options.token = "";
  EXPECT_THAT(FetchBoth(options),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("hf://o/n: HTTP 403"), HasSubstr("set HF_TOKEN"))));
}

TEST_F(ModelFiles, OfSomethingElseThanAModelAreRefusedWithoutARequest) {
  for (const char* url : {"hf://datasets/o/n", "hf://o", "hf://o/n/config.json", "https://o/n"}) {
    EXPECT_THAT(Fetch(ModelPart::kDescription, url),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(url), HasSubstr("hf://OWNER/NAME[@REVISION]"))))
        << url;
  }
  EXPECT_THAT(server_.seen(), IsEmpty());
}

// Data is read from data sets only.
TEST_F(ModelFiles, AreNoData) {
  EXPECT_THAT(ReadAll("hf://o/n/README.md", Options()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hf://datasets/")));
}

}  // namespace
}  // namespace nsa::train
