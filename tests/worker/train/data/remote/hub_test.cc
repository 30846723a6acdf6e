// Data sets of the Hub: their files, and where the token goes.
#include "worker/train/data/remote/hub.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/data/remote/remote_fixture.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Request = DataServer::Request;
using Reply = DataServer::Reply;

const std::string kHubContent = Content(3500);
constexpr char kToken[] = "hf_secret";

RemoteOptions HubOptions(const DataServer& server) {
  RemoteOptions options = QuickOptions();
  options.policy = *UrlPolicy::Make({"hf://"});
  options.endpoint = server.url("");
  options.token = kToken;
  options.hub_commits = {{"o/n@main", "main"}};  // not asked for
  return options;
}

absl::StatusOr<std::vector<std::string>> Expand(const std::string& url, RemoteOptions options) {
  ReadProgress progress;
  return Remote(std::move(options)).Expand(url, &progress);
}

TEST(Hub, AFileIsAtItsRevision) {
  const auto hub = ParseHubUrl("hf://datasets/o/n@v1/data/a b.parquet");
  ASSERT_OK(hub);
  EXPECT_EQ(HubFileUrl("https://hub", *hub),
            "https://hub/datasets/o/n/resolve/v1/data/a%20b.parquet");
  EXPECT_EQ(HubFolderUrl("https://hub", *hub), "https://hub/api/datasets/o/n/tree/v1/data");
  EXPECT_EQ(HubFolderUrl("https://hub", *ParseHubUrl("hf://datasets/o/n/a")),
            "https://hub/api/datasets/o/n/tree/main");
  const auto parquet = ParseHubUrl("hf://datasets/o/n@refs/convert/parquet/default/a.parquet");
  ASSERT_OK(parquet);
  EXPECT_EQ(HubFileUrl("https://hub", *parquet),
            "https://hub/datasets/o/n/resolve/refs%2Fconvert%2Fparquet/default/a.parquet");
  EXPECT_EQ(HubFolderUrl("https://hub", *parquet),
            "https://hub/api/datasets/o/n/tree/refs%2Fconvert%2Fparquet/default");
}

TEST(Hub, AFileIsReadWithTheToken) {
  DataServer server([](const Request& request) {
    if (request.target != "/datasets/o/n/resolve/main/a.txt") return Reply{.status = 404};
    return DataServer::Serve(request, kHubContent);
  });
  EXPECT_EQ(*ReadAll("hf://datasets/o/n/a.txt", HubOptions(server)), kHubContent);
  for (const Request& request : server.seen()) {
    EXPECT_EQ(request.header("authorization"), "Bearer hf_secret");
  }
}

TEST(Hub, TheTokenDoesNotFollowARedirectToAnotherHost) {
  DataServer store([](const Request& request) { return DataServer::Serve(request, kHubContent); });
  DataServer server([&](const Request&) {
    return Reply{.status = 302, .headers = {{"Location", store.url("/blob")}}};
  });
  RemoteOptions options = HubOptions(server);
  options.policy = *UrlPolicy::Make({"*"});
  EXPECT_EQ(*ReadAll("hf://datasets/o/n/a.txt", options), kHubContent);
  EXPECT_EQ(server.seen().front().header("authorization"), "Bearer hf_secret");
  ASSERT_FALSE(store.seen().empty());
  for (const Request& request : store.seen()) EXPECT_EQ(request.header("authorization"), "");
}

TEST(Hub, TheTokenDoesNotGoToAPlainUrlOfTheSameHost) {
  DataServer server([](const Request& request) { return DataServer::Serve(request, kHubContent); });
  RemoteOptions options = HubOptions(server);
  options.policy = *UrlPolicy::Make({"*"});
  EXPECT_EQ(*ReadAll(server.url("/a.txt"), options), kHubContent);
  for (const Request& request : server.seen()) EXPECT_EQ(request.header("authorization"), "");
}

TEST(Hub, TheTokenDoesNotGoToAnHttpProxy) {
  DataServer proxy([](const Request& request) { return DataServer::Serve(request, kHubContent); });
  DataServer server([](const Request& request) { return DataServer::Serve(request, kHubContent); });
  RemoteOptions options = HubOptions(server);
  options.policy = *UrlPolicy::Make({"*"});
  for (const char* name : {"no_proxy", "NO_PROXY"}) unsetenv(name);
  setenv("http_proxy", proxy.url("").c_str(), 1);
  EXPECT_EQ(*ReadAll("hf://datasets/o/n/a.txt", options), kHubContent);
  EXPECT_TRUE(proxy.seen().empty());
  options.token = "";
  EXPECT_EQ(*ReadAll("hf://datasets/o/n/a.txt", options), kHubContent);
  EXPECT_FALSE(proxy.seen().empty()) << "the proxy is used without a token";
  unsetenv("http_proxy");
}

TEST(Hub, WithoutAccessTheMessageSaysWhatToSetAndNotTheToken) {
  DataServer server([](const Request&) { return Reply{.status = 401}; });
  RemoteOptions options = HubOptions(server);
  EXPECT_THAT(
      ReadAll("hf://datasets/o/n/a.txt", options),
      StatusIs(absl::StatusCode::kPermissionDenied,
               AllOf(HasSubstr("hf://datasets/o/n/a.txt: HTTP 401"),
                     HasSubstr("the token in HF_TOKEN must be valid"), Not(HasSubstr(kToken)))));
  options.token = "";
  EXPECT_THAT(ReadAll("hf://datasets/o/n/a.txt", options),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("set HF_TOKEN where the agent is started")));
}

TEST(Hub, AMissingFileSaysHowFoldersAreNamed) {
  DataServer server([](const Request&) { return Reply{.status = 404}; });
  EXPECT_THAT(ReadAll("hf://datasets/o/n/sample/10BT", HubOptions(server)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("FOLDER/*.parquet")));
}

std::string Entry(const std::string& type, const std::string& path, int size) {
  return absl::StrCat(R"({"type": ")", type, R"(", "path": ")", path, R"(", "size": )", size, "}");
}

// Two pages, as the Hub sends them.
Reply Listing(const DataServer& server, const Request& request) {
  const std::string first = "/api/datasets/o/n/tree/main/data";
  if (request.target == first) {
    return {.headers = {{"Link", absl::StrCat("<", server.url(first), "?cursor=x>; rel=\"next\"")}},
            .body = absl::StrCat("[", Entry("file", "data/b.parquet", 5), ",",
                                 Entry("directory", "data/c.parquet", 0), ",",
                                 Entry("file", "data/README.md", 6), "]")};
  }
  if (request.target != first + "?cursor=x") return {.status = 404};
  return {.body = absl::StrCat("[", Entry("file", "data/a.parquet", 7), "]")};
}

TEST(Hub, APatternIsTheFilesOfAllPagesInOrder) {
  const DataServer* self = nullptr;
  DataServer server([&](const Request& request) { return Listing(*self, request); });
  self = &server;
  ReadProgress progress;
  Remote remote(HubOptions(server));
  const auto files = remote.Expand("hf://datasets/o/n/data/*.parquet", &progress);
  ASSERT_OK(files);
  EXPECT_THAT(*files,
              ElementsAre("hf://datasets/o/n/data/a.parquet", "hf://datasets/o/n/data/b.parquet"));
  EXPECT_EQ(server.seen().size(), 2u);
  EXPECT_EQ(*remote.Size(files->front(), &progress), 7);
  EXPECT_EQ(server.seen().size(), 2u) << "the list said it";
  EXPECT_EQ(server.seen()[1].header("authorization"), "Bearer hf_secret");
}

TEST(Hub, BracketsInAFoldersNameAndInTheNameOfAFileThatIsThereAreLiteral) {
  DataServer server([](const Request& request) -> Reply {
    if (request.target != "/api/datasets/o/n/tree/main/data%20%5Bv2%5D") return {.status = 404};
    return {.body = absl::StrCat("[", Entry("file", "data [v2]/a1.txt", 5), ",",
                                 Entry("file", "data [v2]/a[1].txt", 6), "]")};
  });
  const std::string folder = "hf://datasets/o/n/data [v2]/";
  EXPECT_THAT(Expand(folder + "a*.txt", HubOptions(server)).value(),
              ElementsAre(folder + "a1.txt", folder + "a[1].txt"));
  EXPECT_THAT(Expand(folder + "a[1].txt", HubOptions(server)).value(),
              ElementsAre(folder + "a[1].txt"));
  EXPECT_THAT(Expand(folder + "a[12].txt", HubOptions(server)).value(),
              ElementsAre(folder + "a1.txt"));
}

TEST(Hub, APatternThatNothingMatchesIsAnError) {
  const DataServer* self = nullptr;
  DataServer server([&](const Request& request) { return Listing(*self, request); });
  self = &server;
  EXPECT_THAT(Expand("hf://datasets/o/n/data/*.jsonl", HubOptions(server)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("*.jsonl: no file matches")));
}

// A data set whose branch is at another commit whenever one asks.
const std::string kCommits[] = {std::string(40, 'a'), std::string(40, 'b')};
Reply Moving(const Request& request, std::atomic<int>* asked) {
  if (request.target == "/api/datasets/o/n/revision/main?expand=sha") {
    return {.body = absl::StrCat(R"({"id": "o/n", "sha": ")", kCommits[(*asked)++ % 2], R"("})")};
  }
  for (const std::string& commit : kCommits) {
    if (request.target == absl::StrCat("/api/datasets/o/n/tree/", commit, "/data")) {
      return {.body = absl::StrCat("[", Entry("file", "data/a.txt", 3500), "]")};
    }
    if (request.target == absl::StrCat("/datasets/o/n/resolve/", commit, "/data/a.txt")) {
      return DataServer::Serve(request, commit + kHubContent, absl::StrCat("\"", commit, "\""));
    }
  }
  return {.status = 404};
}

TEST(Hub, AllFilesOfABranchAreReadAtTheCommitWhereItWasFirst) {
  std::atomic<int> asked = 0;
  DataServer server([&](const Request& request) { return Moving(request, &asked); });
  RemoteOptions options = HubOptions(server);
  options.hub_commits = {};
  ReadProgress progress;
  Remote remote(options);
  const auto files = remote.Expand("hf://datasets/o/n/data/*.txt", &progress);
  ASSERT_OK(files);
  ASSERT_THAT(*files, ElementsAre("hf://datasets/o/n/data/a.txt"));
  EXPECT_EQ(*remote.Head(files->front(), 40, &progress), kCommits[0]);
  EXPECT_EQ(*remote.Commit(files->front(), &progress), kCommits[0]);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(server.seen().front().header("authorization"), "Bearer hf_secret");
}

TEST(Hub, ACommitIsReadAsItIsAndOneThatIsKnownIsNotAskedFor) {
  std::atomic<int> asked = 0;
  DataServer server([&](const Request& request) { return Moving(request, &asked); });
  RemoteOptions options = HubOptions(server);
  options.hub_commits = {{"o/n@main", kCommits[1]}};
  EXPECT_TRUE(ReadAll("hf://datasets/o/n/data/a.txt", options)->starts_with(kCommits[1]));
  const std::string pinned = absl::StrCat("hf://datasets/o/n@", kCommits[0], "/data/a.txt");
  EXPECT_TRUE(ReadAll(pinned, options)->starts_with(kCommits[0]));
  EXPECT_EQ(asked, 0);
}

TEST(Hub, AHubThatDoesNotKnowCommitsIsReadAtTheBranch) {
  DataServer server([](const Request& request) {
    if (request.target != "/datasets/o/n/resolve/main/a.txt") return Reply{.status = 404};
    return DataServer::Serve(request, kHubContent);
  });
  RemoteOptions options = HubOptions(server);
  options.hub_commits = {};
  EXPECT_EQ(*ReadAll("hf://datasets/o/n/a.txt", options), kHubContent);
  ReadProgress progress;
  EXPECT_EQ(*Remote(options).Commit("hf://datasets/o/n/a.txt", &progress), "");
}

TEST(Hub, AnAnswerWithoutACommitIsRefused) {
  for (const char* body : {"", "[]", "{}", R"({"sha": 1})", R"({"sha": "main"})"}) {
    DataServer server([&](const Request&) { return Reply{.body = body}; });
    RemoteOptions options = HubOptions(server);
    options.hub_commits = {};
    EXPECT_THAT(ReadAll("hf://datasets/o/n/a.txt", options),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("hf://datasets/o/n/a.txt: the Hub does not say"),
                               HasSubstr("@COMMIT"))))
        << body;
  }
}

TEST(Hub, AListThatContinuesElsewhereIsRefused) {
  DataServer other([](const Request&) { return Reply{.body = "[]"}; });
  DataServer server([&](const Request&) {
    return Reply{.headers = {{"Link", absl::StrCat("<", other.url("/x"), ">; rel=\"next\"")}},
                 .body = "[]"};
  });
  EXPECT_THAT(Expand("hf://datasets/o/n/*.parquet", HubOptions(server)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("continues on another host")));
  EXPECT_TRUE(other.seen().empty());
}

TEST(Hub, AListThatIsNoneIsRefused) {
  for (const char* body :
       {"", "{}", "no", "[1]", R"([{"type": "file"}])", R"([{"type": 1, "path": "x"}])"}) {
    DataServer server([&](const Request&) { return Reply{.body = body}; });
    EXPECT_THAT(
        Expand("hf://datasets/o/n/*.parquet", HubOptions(server)),
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr("hf://datasets/o/n/*.parquet"), HasSubstr("a list of files"))))
        << body;
  }
}

class Environment : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME",
                             "HF_ENDPOINT", "NSA_DATA_CACHE_BYTES", "NSA_DATA_CACHE_DIR"}) {
      unsetenv(name);
    }
  }

  // Writes a token, as `hf auth login` does, and returns the path.
  std::string WriteToken(const std::string& name, const std::string& token) const {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << token;
    return path.string();
  }
  std::string In(const std::string& name) const { return (folder_.path() / name).string(); }

  const TempDir folder_;
};

TEST_F(Environment, SaysTokenEndpointAndCache) {
  setenv("HF_TOKEN", " hf_secret\n", 1);
  setenv("HF_ENDPOINT", "https://mirror.example/", 1);
  setenv("NSA_DATA_CACHE_DIR", "/c", 1);
  setenv("NSA_DATA_CACHE_BYTES", "5", 1);
  const auto options = RemoteOptionsFor({"hf://"}, absl::Seconds(60));
  ASSERT_OK(options);
  EXPECT_EQ(options->token, kToken);
  EXPECT_EQ(options->endpoint, "https://mirror.example");
  EXPECT_EQ(options->cache, "/c");
  EXPECT_EQ(options->cache_bytes, 5);
  EXPECT_EQ(options->patience, absl::Seconds(48));
  setenv("NSA_DATA_CACHE_BYTES", "0", 1);
  EXPECT_EQ(RemoteOptionsFor({"hf://"}, absl::Seconds(60))->cache, "");
}

TEST_F(Environment, WithoutATokenThatOfTheLoginIsRead) {
  const auto token = [] { return RemoteOptionsFor({"hf://"}, absl::Seconds(60))->token; };
  WriteToken("cache/huggingface/token", "hf_cache\n");
  WriteToken("home/token", "hf_home\n");
  const std::string path = WriteToken("path", "hf_path\n");
  setenv("XDG_CACHE_HOME", In("cache").c_str(), 1);
  EXPECT_EQ(token(), "hf_cache");
  setenv("HF_HOME", In("home").c_str(), 1);
  EXPECT_EQ(token(), "hf_home");
  setenv("HF_TOKEN_PATH", path.c_str(), 1);
  EXPECT_EQ(token(), "hf_path");
  EXPECT_EQ(RemoteOptionsFor({"hf://"}, absl::Seconds(60))->token_from, path);
  setenv("HF_TOKEN", kToken, 1);
  EXPECT_EQ(token(), kToken);
  unsetenv("HF_TOKEN");
  setenv("HF_TOKEN_PATH", "", 1);
  EXPECT_EQ(token(), "") << "as agents set it for ranks";
  setenv("HF_TOKEN_PATH", In("none").c_str(), 1);
  EXPECT_EQ(token(), "");
}

TEST_F(Environment, AFileThatHasNoTokenIsNamedWithoutItsContent) {
  const std::string path = WriteToken("path", "hf_secret\r\nX: y");
  setenv("HF_TOKEN_PATH", path.c_str(), 1);
  EXPECT_THAT(
      RemoteOptionsFor({}, absl::Seconds(60)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr(path), HasSubstr("hf auth login"), Not(HasSubstr("hf_secret")))));
  WriteToken("path", "hf_secret");
  setenv("HF_ENDPOINT", "http://mirror.example", 1);
  EXPECT_THAT(RemoteOptionsFor({}, absl::Seconds(60)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(path), HasSubstr("set HF_TOKEN_PATH to nothing"))));
}

TEST_F(Environment, IsRefusedWithTheNameOfTheVariable) {
  setenv("NSA_DATA_CACHE_BYTES", "-1", 1);
  EXPECT_THAT(
      RemoteOptionsFor({}, absl::Seconds(60)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("NSA_DATA_CACHE_BYTES: '-1'")));
  unsetenv("NSA_DATA_CACHE_BYTES");
  setenv("HF_TOKEN", "hf_secret\r\nX: y", 1);
  EXPECT_THAT(RemoteOptionsFor({}, absl::Seconds(60)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("HF_TOKEN"), Not(HasSubstr("hf_secret")))));
  setenv("HF_TOKEN", kToken, 1);
  setenv("HF_ENDPOINT", "http://mirror.example", 1);
  EXPECT_THAT(RemoteOptionsFor({}, absl::Seconds(60)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use https://")));
}

}  // namespace
}  // namespace nsa::train
