// Traces through the real agent, with a fake worker and a fake coordinator.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/agent_fixture.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ProfileRunnerTest : public AgentFixture {
 protected:
  void RunProfiled(const std::string& how) {
    StartAgent();
    RunWorker(Assignment(kJob, 1'000'000, {{"step_ms", "5"}, {"profile", how}}));
    coordinator_.WantProfile("p-1", kJob, 3);
  }
};

TEST_F(ProfileRunnerTest, DeliversEveryByteAsFastAsTheReaderTakesThem) {
  RunProfiled("file");
  ASSERT_TRUE(Eventually([&] { return coordinator_.ProfileOf("p-1").complete; }));
  const FakeCoordinator::ProfileReport report = coordinator_.ProfileOf("p-1");
  EXPECT_EQ(report.data, *ReadWholeFile(Dir(kJob).profile("p-1")));
  EXPECT_EQ(report.data.size(), 600'000u);
  EXPECT_EQ(report.refused, 3) << "three parts of at most 256 KiB";
  EXPECT_EQ(report.error, "");
  EXPECT_GE(report.signs, 1) << "the coordinator hears of it while the worker records";
  coordinator_.UnwantProfile("p-1");
  EXPECT_TRUE(coordinator_.WaitForHeartbeat());
}

TEST_F(ProfileRunnerTest, PassesTheWorkersRefusalOn) {
  RunProfiled("refuse");
  ASSERT_TRUE(Eventually([&] { return !coordinator_.ProfileOf("p-1").error.empty(); }));
  EXPECT_EQ(coordinator_.ProfileOf("p-1").error,
            "profile: rank 0 records another trace (x); try again");
}

TEST_F(ProfileRunnerTest, SaysSoWhenTheWorkerEndsBeforeItsTraceIsComplete) {
  RunProfiled("none");
  ASSERT_TRUE(Eventually([&] { return coordinator_.ProfileOf("p-1").signs > 1; }));
  ASSERT_OK(SignalProcess(workers_[kJob], SIGKILL));
  ASSERT_TRUE(Eventually([&] { return !coordinator_.ProfileOf("p-1").error.empty(); }));
  EXPECT_THAT(coordinator_.ProfileOf("p-1").error, HasSubstr("rank 0: it ended"));
}

TEST_F(ProfileRunnerTest, OfAWorkerThatIsNotThereSaysSo) {
  StartAgent();
  coordinator_.WantProfile("p-1", {"nobody", 1, 0}, 3);
  ASSERT_TRUE(Eventually([&] { return !coordinator_.ProfileOf("p-1").error.empty(); }));
  EXPECT_EQ(coordinator_.ProfileOf("p-1").error,
            "job nobody generation 1 rank 0: no such worker runs");
}

TEST_F(ProfileRunnerTest, AStoppedWorkerGivesNoSignOfLife) {
  RunProfiled("none");
  ASSERT_TRUE(Eventually([&] { return coordinator_.ProfileOf("p-1").signs > 0; }));
  ASSERT_OK(SignalProcess(workers_[kJob], SIGSTOP));
  ASSERT_TRUE(Eventually([&] { return ProcessState(workers_[kJob]) == 'T'; }));
  absl::SleepFor(absl::Seconds(1));  // an answer may be on its way
  const int signs = coordinator_.ProfileOf("p-1").signs;
  absl::SleepFor(absl::Seconds(2));
  EXPECT_EQ(coordinator_.ProfileOf("p-1").signs, signs);
  coordinator_.UnwantProfile("p-1");
}

TEST_F(ProfileRunnerTest, ALinkInPlaceOfTheTraceIsNotFollowed) {
  StartAgent();
  RunWorker(Assignment(kJob, 1'000'000, {{"step_ms", "5"}, {"profile", "none"}}));
  std::filesystem::create_symlink("/etc/passwd", Dir(kJob).profile("p-1"));
  coordinator_.WantProfile("p-1", kJob, 3);
  ASSERT_TRUE(Eventually([&] { return coordinator_.ProfileOf("p-1").signs > 1; }));
  EXPECT_EQ(coordinator_.ProfileOf("p-1").data, "");
}

}  // namespace
}  // namespace nsa
