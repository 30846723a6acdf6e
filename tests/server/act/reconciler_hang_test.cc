// Ranks that stand still or cannot report: what the job says, when stacks are dumped, when it
// restarts.
#include <filesystem>
#include <fstream>

#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using v1::Job;

using ReconcilerHangTest = Harness;

TEST_F(ReconcilerHangTest, ARankThatCannotWriteItsTelemetrySaysWhyWhileItRuns) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Find(1)->seen.set_telemetry_error("journal: no room");
  Round({&agent});
  EXPECT_EQ(Get(id).ranks(0).telemetry_error(), "");
  EXPECT_EQ(Get(id).ranks(1).telemetry_error(), "journal: no room");
  agent.Find(1)->seen.clear_telemetry_error();
  Round({&agent});
  EXPECT_EQ(Get(id).ranks(1).telemetry_error(), "");
}

TEST_F(ReconcilerHangTest, ARankWhoseRecordsDoNotArriveSaysSo) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(2);
  const auto pass = [&](absl::Duration time) {
    for (absl::Duration t; t < time; t += absl::Milliseconds(500)) Round({&agent});
  };
  pass(absl::Seconds(70));
  EXPECT_EQ(Get(id).ranks(0).note(), "") << "a long step";
  agent.Find(0)->seen.set_step(5);  // without a record
  pass(absl::Seconds(20));
  EXPECT_EQ(Get(id).ranks(0).note(), "") << "it may be on its way";
  pass(absl::Seconds(50));
  EXPECT_EQ(Get(id).progress().step(), 2);
  EXPECT_EQ(Get(id).ranks(0).note(),
            "no record for 30 s or more: what is shown of the job is of step 2");
  EXPECT_EQ(Get(id).ranks(1).note(), "");
  agent.Train(1);
  Round({&agent});
  EXPECT_EQ(Get(id).progress().step(), 6);
  EXPECT_EQ(Get(id).ranks(0).note(), "");
}

TEST_F(ReconcilerHangTest, ARankThatStandsStillSaysWhy) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Find(1)->seen.set_process_state("T");
  Round({&agent});
  EXPECT_EQ(Get(id).ranks(0).state(), "RUNNING");
  EXPECT_EQ(Get(id).ranks(0).note(), "");
  EXPECT_EQ(Get(id).ranks(1).state(), "SUSPENDED");
  EXPECT_EQ(Get(id).ranks(1).note(), "process stopped (T)");
  agent.Find(1)->seen.set_seconds_since_progress(34);
  Round({&agent});
  EXPECT_EQ(Get(id).ranks(1).note(), "process stopped (T), no progress for 30 s");
  agent.Find(1)->seen.set_process_state("S");
  Round({&agent});
  EXPECT_EQ(Get(id).ranks(1).state(), "RUNNING");
  EXPECT_EQ(Get(id).ranks(1).note(), "no progress for 30 s");
  clock().Advance(absl::Seconds(20));
  EXPECT_EQ(Get(id).ranks(1).state(), "UNKNOWN");
  EXPECT_EQ(Get(id).ranks(1).note(), "no heartbeat from its machine for 20 s");
}

TEST_F(ReconcilerHangTest, AHangIsDumpedThenRestarted) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(9);
  Round({&agent});
  for (const int rank : {0, 1}) agent.Find(rank)->seen.set_seconds_since_progress(61);
  agent.Find(1)->seen.set_process_state("T");
  agent.Find(1)->seen.set_seconds_since_progress(62);
  Round({&agent});
  Round({&agent});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << "stacks first";
  EXPECT_EQ(agent.dumps, 2);
  EXPECT_THAT(History(id), HasSubstr("HANG_SUSPECTED STACKS_SAVED"));
  clock().Advance(kDumpGrace);
  RunUntil(id, Job::STATE_RESTARTING, {&agent});
  EXPECT_EQ(Get(id).reason(), "HANG");
  EXPECT_THAT(Get(id).message(), HasSubstr("rank 1 on a"));
  const auto saved = life().stacks.Read(id, 0);
  ASSERT_OK(saved);
  EXPECT_THAT(saved->text(), AllOf(HasSubstr("rank 1 on a: no progress for 62 s"),
                                   HasSubstr("== rank 0 on a"), HasSubstr("== rank 1 on a")));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(Get(id).restarts(), 1);
}

TEST_F(ReconcilerHangTest, AStandstillIsSavedOnceAndTheJobGoesOn) {
  FakeAgent agent = MakeAgent("a", 2);
  v1::JobSpec spec = Spec("demo", 2);
  spec.mutable_restart()->set_hang_timeout_seconds(600);
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(9);
  const auto stand = [&](double seconds) {
    agent.Find(1)->seen.set_seconds_since_progress(seconds);
    for (int i = 0; i < 2; ++i) Round({&agent});
  };
  stand(179);
  EXPECT_EQ(agent.dumps, 0);
  stand(180);
  EXPECT_EQ(agent.dumps, 2) << "all ranks";
  ASSERT_EQ(life().stacks.List(id).size(), 1U);
  const auto events = store().Events(id, 0, 1'000);
  ASSERT_OK(events);
  EXPECT_EQ(events->back().reason(), "STACKS_SAVED");
  EXPECT_THAT(events->back().text(), AllOf(HasSubstr("rank 1 on a: no progress for 180 s"),
                                           HasSubstr("stacks saved as 1 in ")));
  clock().Advance(absl::Seconds(300));
  stand(481);
  Restart();
  for (int i = 0; i < 3; ++i) stand(482);
  EXPECT_EQ(agent.dumps, 2) << "the same standstill, also for a coordinator that was restarted";
  stand(0);
  clock().Advance(absl::Seconds(200));
  stand(190);
  EXPECT_EQ(life().stacks.List(id).size(), 2U) << "another standstill";
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  EXPECT_EQ(Get(id).restarts(), 0);
  EXPECT_THAT(History(id), Not(HasSubstr("HANG_")));
}

TEST_F(ReconcilerHangTest, AnEventSaysThatStacksCouldNotBeSaved) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(9);
  std::ofstream(folder_ / "state" / "dumps") << "a file where the folder should be";
  agent.Find(0)->seen.set_seconds_since_progress(61);
  for (int i = 0; i < 2; ++i) Round({&agent});
  const auto events = store().Events(id, 0, 1'000);
  ASSERT_OK(events);
  EXPECT_EQ(events->back().reason(), "STACKS_NOT_SAVED");
  EXPECT_THAT(events->back().text(), AllOf(HasSubstr("stacks not saved: "),
                                           HasSubstr((folder_ / "state" / "dumps").string())));
}

TEST_F(ReconcilerHangTest, ARankThatGetsOnAgainWasNoHang) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(9);
  agent.Find(0)->seen.set_seconds_since_progress(61);
  Round({&agent});
  EXPECT_THAT(History(id), HasSubstr("HANG_SUSPECTED"));
  agent.Find(0)->seen.set_seconds_since_progress(0);
  Round({&agent});
  clock().Advance(kDumpGrace);
  Round({&agent});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  EXPECT_THAT(History(id), HasSubstr("HANG_OVER"));
}

}  // namespace
}  // namespace nsa::server
