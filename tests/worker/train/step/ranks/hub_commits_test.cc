// A branch of the Hub that moves while a run trains on it.
#include "worker/train/step/ranks/hub_commits.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/net/data_server.h"
#include "tests/worker/train/step/trainer_jobs.h"

namespace nsa::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Request = DataServer::Request;
using Reply = DataServer::Reply;

const std::string kOld(40, 'a');
const std::string kNew(40, 'b');

std::string LinesOf(char digit) {
  std::string lines;
  for (int line = 0; line < 20; ++line) {
    absl::StrAppend(&lines, R"({"text": ")", std::string(40, digit), line % 10, "\"}\n");
  }
  return lines;
}

class HubCommitsTest : public ::testing::Test {
 protected:
  HubCommitsTest() : server_([this](const Request& request) { return Answer(request); }) {
    setenv("HF_ENDPOINT", server_.url("").c_str(), 1);
    setenv("NSA_DATA_CACHE_BYTES", "0", 1);
  }
  ~HubCommitsTest() override {
    unsetenv("HF_ENDPOINT");
    unsetenv("NSA_DATA_CACHE_BYTES");
  }

  Reply Answer(const Request& request) {
    if (request.target == "/api/datasets/o/n/revision/main?expand=sha") {
      ++asked_;
      const bool moved = moved_;
      if (moves_at_once_) moved_ = true;
      return {.body = absl::StrCat(R"({"sha": ")", moved ? kNew : kOld, R"("})")};
    }
    for (const std::string& commit : {kOld, kNew}) {
      if (request.target != absl::StrCat("/datasets/o/n/resolve/", commit, "/a.jsonl")) continue;
      return DataServer::Serve(request, LinesOf(commit == kOld ? '1' : '2'),
                               absl::StrCat("\"", commit, "\""));
    }
    return {.status = 404};
  }

  static v1::JobSpec HubJob(const TempDir& dir, const std::string& out,
                            const std::string& url = "hf://datasets/o/n/a.jsonl") {
    v1::JobSpec spec = Job(dir, out);
    spec.mutable_data()->set_source(v1::DATA_SOURCE_JSONL);
    spec.mutable_data()->add_path(url);
    return spec;
  }

  static RunOptions Allowed(RunOptions options) {
    options.launch = [](v1::WorkerLaunch* launch) { launch->add_allowed_urls("hf://"); };
    return options;
  }

  bool HasRead(const std::string& commit) {
    for (const Request& request : server_.seen()) {
      if (absl::StrContains(request.target, commit)) return true;
    }
    return false;
  }

  static auto CommitsAt(const TempDir& dir, const std::string& out, int64_t step) {
    const auto state =
        ReadCheckpointState(CheckpointsDir((dir / out).string()) / CheckpointName(step));
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? state->data().hub_commits() : v1::DataCursor().hub_commits();
  }

  std::atomic<bool> moved_ = false;
  std::atomic<bool> moves_at_once_ = false;
  std::atomic<int> asked_ = 0;
  DataServer server_;
};

TEST_F(HubCommitsTest, AllRanksReadTheCommitThatOneHasAskedFor) {
  moves_at_once_ = true;
  const TempDir dir, runs;
  const auto results = RunJob(runs, HubJob(dir, "out"), Allowed({.world = 2}));
  EXPECT_EQ(results[0].finished.outcome(), v1::OUTCOME_COMPLETED) << results[0].finished.text();
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(HasRead(kOld));
  EXPECT_FALSE(HasRead(kNew));
  EXPECT_THAT(CommitsAt(dir, "out", 12), UnorderedElementsAre(Pair("o/n@main", kOld)));
}

TEST_F(HubCommitsTest, ARestartReadsTheCommitOfTheCheckpointAndSaysThatTheBranchHasMoved) {
  const TempDir dir, runs;
  const v1::JobSpec spec = HubJob(dir, "out");
  const RankResult first = RunJob(runs, spec, Allowed(StopAt(5, 0)))[0];
  EXPECT_EQ(first.finished.step(), 5) << first.finished.text();
  moved_ = true;
  const RankResult second = RunJob(runs, spec, Allowed({.generation = 2}))[0];
  EXPECT_EQ(second.started.resumed_step(), 5);
  EXPECT_EQ(second.finished.outcome(), v1::OUTCOME_COMPLETED) << second.finished.text();
  EXPECT_FALSE(HasRead(kNew));
  EXPECT_THAT(EventTexts(first, "DATA_MOVED"), IsEmpty());
  EXPECT_THAT(EventTexts(second, "DATA_MOVED"),
              ElementsAre(AllOf(HasSubstr("o/n@main is at commit " + kNew), HasSubstr(kOld))));
  EXPECT_THAT(CommitsAt(dir, "out", 12), UnorderedElementsAre(Pair("o/n@main", kOld)));
}

TEST_F(HubCommitsTest, AJobThatGoesOnFromAnothersCheckpointReadsItsCommit) {
  const TempDir dir, runs;
  RunJob(runs, HubJob(dir, "out"), Allowed(StopAt(5, 0)));
  moved_ = true;
  v1::JobSpec spec = HubJob(dir, "fork");
  spec.mutable_restart()->set_resume(dir / "out");
  const TempDir other;
  const RankResult fork = RunJob(other, spec, Allowed({.job_id = "fork"}))[0];
  EXPECT_EQ(fork.finished.outcome(), v1::OUTCOME_COMPLETED) << fork.finished.text();
  EXPECT_FALSE(HasRead(kNew));
  EXPECT_TRUE(fork.HasEvent("DATA_MOVED"));
  EXPECT_THAT(CommitsAt(dir, "fork", 12), UnorderedElementsAre(Pair("o/n@main", kOld)));
}

TEST_F(HubCommitsTest, ACommitInTheUrlIsNotAskedFor) {
  const TempDir dir, runs;
  const std::string url = absl::StrCat("hf://datasets/o/n@", kNew, "/a.jsonl");
  const RankResult result = RunJob(runs, HubJob(dir, "out", url), Allowed({}))[0];
  EXPECT_EQ(result.finished.outcome(), v1::OUTCOME_COMPLETED) << result.finished.text();
  EXPECT_EQ(asked_, 0);
  EXPECT_THAT(CommitsAt(dir, "out", 12), IsEmpty());
}

TEST_F(HubCommitsTest, AnErrorOfTheHubIsTheSameOnEveryRankAndNamesTheField) {
  const TempDir dir, runs;
  const auto results = RunJob(runs, HubJob(dir, "out"), {.world = 2});  // no URL is allowed
  for (const RankResult& result : results) {
    EXPECT_THAT(result.finished.text(), AllOf(HasSubstr("data.path"), HasSubstr("allowed_urls")));
  }
}

}  // namespace
}  // namespace nsa::train
