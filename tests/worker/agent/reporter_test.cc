// What the agent does with a log that the coordinator does not store.
#include "worker/agent/reporter.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "tests/testing/agent_fixture.h"
#include "tests/testing/fakes/fake_coordinator.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"

namespace nsa::agent {
namespace {

using Result = Reporter::Result;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Milliseconds(300);

class ReporterTest : public ::testing::Test {
 protected:
  ReporterTest() {
    AgentOptions options;
    options.node_name = "test-node";
    options.coordinator_address = coordinator_.address();
    link_ = Link::Open(options).value();
    std::filesystem::create_directories(run_.log().parent_path());
    std::ofstream(run_.log()) << "a line\n";
    reporter_ = std::make_unique<Reporter>(RankKey{"job-a", 1, 0}, run_, link_.get());
  }

  // Pumps until something else than a failure comes of it.
  Result Ends(std::optional<absl::Duration> patience) {
    Result result = Result::kFailed;
    Within(absl::Seconds(30), [&] {
      result = reporter_->Pump(patience);
      return result != Result::kFailed;
    });
    return result;
  }

  const TempDir folder_;
  FakeCoordinator coordinator_{folder_ / "socket"};
  const FakeCoordinator::Key key_ = {"job-a", 1, 0};
  const RunDir run_ = RunDir::Of(folder_ / "state", "job-a", 1, 0);
  std::unique_ptr<Link> link_;
  std::unique_ptr<Reporter> reporter_;
};

TEST_F(ReporterTest, GivesALogUpThatIsRefusedForLongerThanThePatience) {
  for (const absl::StatusCode code : {absl::StatusCode::kInternal, absl::StatusCode::kUnavailable,
                                      absl::StatusCode::kResourceExhausted}) {
    reporter_ = std::make_unique<Reporter>(RankKey{"job-a", 1, 0}, run_, link_.get());
    coordinator_.RefuseLog(ToGrpc(absl::Status(code, "no space left on device")));
    const absl::Duration before = RealClock().Monotonic();
    EXPECT_EQ(Ends(kPatience), Result::kComplete) << absl::StatusCodeToString(code);
    EXPECT_GE(RealClock().Monotonic() - before, kPatience);
    const int64_t reports = coordinator_.LogReports();
    EXPECT_EQ(reporter_->Pump(kPatience), Result::kComplete);
    EXPECT_EQ(coordinator_.LogReports(), reports) << "it is given up";
  }
}

TEST_F(ReporterTest, WaitsWhileTheWorkerRuns) {
  coordinator_.RefuseLog(ToGrpc(absl::InternalError("no space left on device")));
  const absl::Duration before = RealClock().Monotonic();
  while (RealClock().Monotonic() - before < 2 * kPatience) {
    EXPECT_NE(reporter_->Pump(std::nullopt), Result::kMore);
  }
  coordinator_.RefuseLog(grpc::Status::OK);
  EXPECT_EQ(Ends(kPatience), Result::kComplete);
  EXPECT_EQ(coordinator_.Log(key_), "a line\n");
}

TEST_F(ReporterTest, WaitsForACoordinatorThatIsAway) {
  coordinator_.Stop();
  const absl::Duration before = RealClock().Monotonic();
  while (RealClock().Monotonic() - before < 2 * kPatience) {
    EXPECT_EQ(reporter_->Pump(kPatience), Result::kFailed);
  }
  coordinator_.Start();
  EXPECT_EQ(Ends(kPatience), Result::kComplete);
  EXPECT_EQ(coordinator_.Log(key_), "a line\n");
}

using AgentLogTest = AgentFixture;

TEST_F(AgentLogTest, ALogThatCannotBeStoredDoesNotKeepAWorkerThatIsStoppedAtOnce) {
  // As the coordinator answers: with details.
  coordinator_.RefuseLog(
      ToGrpc(absl::UnavailableError("/logs/rank-0000.log: No space left on device")));
  StartAgent();
  RunWorker(Assignment(kJob, 30, {{"log_bytes", "100"}, {"hold_at_step", "20"}}));
  LetGo(kJob);
  ASSERT_TRUE(Eventually([this] { return !IsAlive(workers_[kJob]); }));
  EXPECT_TRUE(Eventually([this] {
    return AgentLog().find("does not take its log: UNAVAILABLE: /logs/") != std::string::npos;
  }));
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).state(), v1::WorkerObservation::STATE_RUNNING)
      << "its log may still be stored";
  const absl::Duration before = RealClock().Monotonic();
  coordinator_.SetStop(kJob, v1::STOP_MODE_NOW);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_LT(RealClock().Monotonic() - before, absl::Seconds(30));
  EXPECT_EQ(coordinator_.Observation(kJob).exit_code(), 0);
  EXPECT_FALSE(coordinator_.Observation(kJob).killed_by_agent());
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(30));
  EXPECT_THAT(AgentLog(), HasSubstr("rank 0: 3000 bytes of its log, from byte 0, are lost"));
  const std::vector<std::string> said = absl::StrSplit(AgentLog(), "does not take its log");
  EXPECT_EQ(said.size(), 2U) << "once in five minutes:\n" << AgentLog();
}

}  // namespace
}  // namespace nsa::agent
