// The agent under a coordinator whose job store is another one, or an older copy of its own.
#include "gmock/gmock.h"
#include "tests/testing/agent_fixture.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

class StoreTest : public AgentFixture {
 protected:
  StoreTest() { coordinator_.UseStore("sours"); }

  // The coordinator is restarted with another store.
  void ExchangeStore(const std::string& id) {
    coordinator_.Stop();
    coordinator_.UseStore(id);
    coordinator_.Start();
  }
  std::string KnownStore() {
    return ReadWholeFile(std::filesystem::path(StateDir()) / "store_id").value_or("");
  }
};

TEST_F(StoreTest, WorkersOfAnotherStoreKeepRunningAndNoOtherIsStarted) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  EXPECT_EQ(coordinator_.StoreOfWorkers(), "sours");
  EXPECT_EQ(KnownStore(), "sours\n");
  coordinator_.Unwant(kJob);
  const Key other = {"job-b", 1, 0};
  coordinator_.Stop();
  coordinator_.UseStore("sother");
  coordinator_.Want(Assignment(other, 5));
  coordinator_.Start();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_TRUE(IsAlive(worker));
  EXPECT_FALSE(std::filesystem::exists(Dir(other).path));
  EXPECT_THAT(AgentLog(), HasSubstr("it has job store sother, and 1 worker(s) here were started "
                                    "under sours: they keep running"));
  EXPECT_EQ(KnownStore(), "sours\n");
  KillAgent();
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_TRUE(IsAlive(worker)) << "the next agent knows it too";
  EXPECT_EQ(coordinator_.StoreOfWorkers(), "sours");
}

TEST_F(StoreTest, WhatWasWrittenMeanwhileReachesTheRightStore) {
  StartAgent();
  const ProcessIdentity worker =
      RunWorker(Assignment(kJob, 400, {{"log_bytes", "100"}, {"step_ms", "2"}}));
  ExchangeStore("sother");
  // It ends while the other store answers, which must not make its agent give anything up.
  ASSERT_TRUE(Eventually([&] { return !IsAlive(worker); }));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_TRUE(std::filesystem::exists(Dir(kJob).path));
  ExchangeStore("sours");
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(400));
  EXPECT_EQ(coordinator_.Log(kJob).size(), 400U * 100U);
}

TEST_F(StoreTest, TheyEndWithACheckpointWhenTheCoordinatorAsksAndTheNewStoreIsItsOwnThen) {
  StartAgent();
  v1::WorkerAssignment assignment = Assignment(kJob, 1000000);
  const ProcessIdentity worker = RunWorker(assignment);
  coordinator_.Unwant(kJob);
  ExchangeStore("sother");
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  coordinator_.AskUnknown(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(worker); }));
  EXPECT_TRUE(Eventually([&] { return KnownStore() == "sother\n"; }));
  EXPECT_FALSE(std::filesystem::exists(Dir(kJob).path));
  EXPECT_THAT(AgentLog(), HasSubstr("ended with code 0"));
  const Key next = {"job-b", 1, 0};
  coordinator_.Want(Assignment(next, 5));
  ASSERT_TRUE(WaitForEnd(next));
  EXPECT_EQ(coordinator_.StoreOfWorkers(), "sother");
}

TEST_F(StoreTest, AWorkerThatTheStoreDoesNotKnowIsAskedFirstAndKilledWhenItIsLate) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000, {{"ignore_stop", "1"}}));
  coordinator_.AskUnknown(kJob, v1::STOP_MODE_GRACEFUL);
  coordinator_.Unwant(kJob);
  ASSERT_TRUE(Eventually(
      [&] { return AgentLog().find("told to stop after the step") != std::string::npos; }));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_TRUE(IsAlive(worker));
  coordinator_.AskUnknown(kJob, v1::STOP_MODE_NOW);
  EXPECT_TRUE(Eventually([&] { return !IsAlive(worker); }));
  EXPECT_TRUE(
      Eventually([&] { return AgentLog().find("ended with signal 9") != std::string::npos; }));
}

TEST_F(StoreTest, AnOlderCoordinatorNamesNoStoreAndIsObeyed) {
  coordinator_.UseStore("");
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  coordinator_.Unwant(kJob);
  EXPECT_TRUE(Eventually([&] { return !IsAlive(worker); }));
}

}  // namespace
}  // namespace nsa
