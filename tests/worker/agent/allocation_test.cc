// The agent on a machine that a cluster manager gave to one job.
#include <fstream>

#include "gmock/gmock.h"
#include "tests/testing/agent_fixture.h"
#include "worker/agent/link/accepts.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class AllocationTest : public AgentFixture {
 protected:
  AllocationTest() {
    std::ofstream(folder_ / "agent.yaml", std::ios::app)
        << "allocation: aabcdefghijkl\nrank_address: 127.0.0.1\n";
  }
};

TEST_F(AllocationTest, EveryHeartbeatNamesIt) {
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Node().allocation(), "aabcdefghijkl");
}

TEST_F(AllocationTest, OnSigtermTheWorkersStopWithACheckpointAndThenTheAgentEnds) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, 3));
  EXPECT_EQ(EndAgent(SIGTERM).code, 0);
  EXPECT_FALSE(IsAlive(worker));
  const auto records = coordinator_.Records(kJob);
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.back().finished().outcome(), v1::OUTCOME_STOPPED)
      << "the coordinator knows how they ended: " << records.back().ShortDebugString();
  EXPECT_EQ(coordinator_.Observation(kJob).state(), v1::WorkerObservation::STATE_EXITED);
  EXPECT_THAT(AgentLog(), HasSubstr("asking the workers to stop"));
}

TEST_F(AllocationTest, WithoutWorkersItEndsAtOnce) {
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(EndAgent(SIGTERM).code, 0);
}

TEST_F(AllocationTest, OnceItIsOverWorkersAreKilledAndTheAgentEnds) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  coordinator_.EndAllocation();
  EXPECT_EQ(AwaitAgent().code, 0);
  EXPECT_TRUE(Eventually([&] { return !IsAlive(worker); }));
}

TEST_F(AgentFixture, OutsideAnAllocationSuchAnAnswerEndsNothing) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  coordinator_.EndAllocation();
  ASSERT_TRUE(Eventually([&] { return AgentLog().find("NOT_FOUND") != std::string::npos; }));
  EXPECT_TRUE(IsAlive(worker));
}

TEST(AddressTowards, IsTheAddressOfTheRoute) {
  EXPECT_EQ(*agent::AddressTowards("127.0.0.1:50951"), "127.0.0.1");
  EXPECT_EQ(*agent::AddressTowards("127.0.0.5:50951"), "127.0.0.1");
  EXPECT_THAT(
      agent::AddressTowards("unix:/run/nsa.sock"),
      StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("coordinator_address: unix")));
  EXPECT_THAT(agent::AddressTowards("no.such.host.invalid:1"),
              StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace nsa
