// Multi-machine jobs on machines that are not all alike, through the reconciler.
#include "gmock/gmock.h"
#include "server/watch/nodes_view.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::Job;

constexpr char kOld[] = "00000000000000aa";
constexpr char kNew[] = "00000000000000bb";

class SeveralMachinesTest : public Harness {
 protected:
  FakeAgent Machine(const std::string& name, const char* program) {
    FakeAgent agent = MakeAgent(name, 1);
    agent.node().set_rank_address("10.0.0.2");
    agent.node().set_worker_hash(program);
    return agent;
  }
  v1::JobSpec Wide(const std::string& name) {
    v1::JobSpec spec = Spec(name, 2);
    spec.mutable_resources()->set_nodes(2);
    return spec;
  }
  std::vector<std::string> Places(const std::string& id) {
    std::vector<std::string> places;
    for (const auto& place : (*store().Find(id))->placements()) places.push_back(place.node());
    return places;
  }
  absl::Status Refusal(const v1::JobSpec& spec) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    return control().Submit(request).status();
  }
  // Sets the clocks of the machines, from now on.
  void SetClock(FakeAgent* agent, absl::Duration ahead) {
    agent->node().set_unix_nanos(absl::ToUnixNanos(clock().Wall() + ahead));
  }
};

TEST_F(SeveralMachinesTest, AJobRunsOnTheOnesThatAreAlike) {
  FakeAgent a = Machine("a", kOld), b = Machine("b", kNew), c = Machine("c", kOld);
  Round({&a, &b, &c});
  const std::string id = Submit(Wide("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&a, &b, &c});
  EXPECT_THAT(Places(id), ElementsAre("a", "c"));
}

TEST_F(SeveralMachinesTest, AJobForWhichNoGroupIsLargeEnoughIsRefusedUnlessItWaivesTheRule) {
  FakeAgent a = Machine("a", kOld), b = Machine("b", kNew);
  Round({&a, &b});
  EXPECT_THAT(Refusal(Wide("demo")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("b: nsa-worker 00000000000000bb, a has 00000000000000aa")));
  v1::JobSpec waived = Wide("waived");
  (*waived.mutable_preflight()->mutable_waive())["MACHINES_DIFFER"] = "built from one source";
  RunUntil(Submit(waived), Job::STATE_RUNNING, {&a, &b});
  EXPECT_OK(Refusal(Spec("one-machine")));
}

TEST_F(SeveralMachinesTest, TooFewMachinesAreNoDifference) {
  FakeAgent a = Machine("a", kOld), b = Machine("b", kNew);
  b.node().clear_rank_address();
  Round({&a, &b});
  const std::string id = Submit(Wide("demo"));
  Round({&a, &b});
  EXPECT_EQ(Get(id).reason(), "UNPLACEABLE");
  EXPECT_THAT(Get(id).message(), HasSubstr("1 of them have a rank_address"));
}

TEST_F(SeveralMachinesTest, AQueuedJobSaysWhichMachineDiffersAndStartsWhenItIsMended) {
  FakeAgent a = Machine("a", kOld), b = Machine("b", kOld);
  Round({&a, &b});
  b.node().set_worker_hash(kNew);  // updated after the submit
  const std::string id = Submit(Wide("demo"));
  for (int i = 0; i < 5; ++i) Round({&a, &b});
  EXPECT_EQ(Get(id).state(), Job::STATE_QUEUED);
  EXPECT_EQ(Get(id).reason(), "UNPLACEABLE");
  EXPECT_THAT(Get(id).message(), HasSubstr("b: nsa-worker 00000000000000bb, a has "
                                           "00000000000000aa; install the same version"));
  a.node().set_worker_hash(kNew);
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
}

TEST_F(SeveralMachinesTest, ARestartWaitsWhileAMachineHasBeenUpdatedAndTheOtherHasNot) {
  FakeAgent a = Machine("a", kOld), b = Machine("b", kOld);
  Round({&a, &b});
  const std::string id = Submit(Wide("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
  b.node().set_worker_hash(kNew);
  for (int i = 0; i < 5; ++i) Round({&a, &b});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << "ranks that run are left alone";
  a.Crash(0, 9);
  for (int i = 0; i < 60; ++i) Round({&a, &b});
  EXPECT_EQ(Get(id).state(), Job::STATE_RESTARTING);
  EXPECT_THAT(Get(id).message(), HasSubstr("MACHINES_DIFFER"));
  a.node().set_worker_hash(kNew);
  for (int i = 0; i < 600 && Get(id).state() != Job::STATE_RUNNING; ++i) Round({&a, &b});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << Get(id).message();
}

TEST_F(SeveralMachinesTest, AJobWaitsUntilTheClocksAgree) {
  FakeAgent a = Machine("a", kOld), b = Machine("b", kOld);
  absl::Duration jumped;  // of the coordinator's clock
  const auto round = [&](absl::Duration ahead) {
    const absl::Duration way = absl::Milliseconds(250);  // until Round() sends it
    SetClock(&a, way - jumped);
    SetClock(&b, way - jumped + ahead);
    Round({&a, &b});
  };
  round(absl::Seconds(2));
  const std::string id = Submit(Wide("demo"));
  ASSERT_EQ(Get(id).warnings_size(), 1);
  EXPECT_EQ(Get(id).warnings(0).rule(), "CLOCKS_DIFFER");
  EXPECT_THAT(Get(id).warnings(0).problem(), HasSubstr("b: clock 2.0 s ahead of that of a"));
  for (int i = 0; i < 5; ++i) round(absl::Seconds(2));
  EXPECT_EQ(Get(id).state(), Job::STATE_QUEUED);
  EXPECT_THAT(Get(id).message(), HasSubstr("b: clock 2.0 s ahead of that of a"));
  jumped = absl::Hours(5);
  clock().JumpWall(jumped);
  round(absl::Seconds(2));
  EXPECT_THAT(Get(id).message(), HasSubstr("b: clock 2.0 s ahead of that of a"));
  for (int i = 0; i < 40 && Get(id).state() != Job::STATE_RUNNING; ++i) {
    round(absl::Milliseconds(900));
  }
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << Get(id).message();
}

TEST_F(SeveralMachinesTest, TheListOfMachinesTellsTheirClocks) {
  FakeAgent a = Machine("a", kOld);
  SetClock(&a, absl::Milliseconds(250) - absl::Seconds(4));
  clock().Advance(absl::Milliseconds(250));
  ASSERT_OK(a.Beat());
  const v1::Node node = OneNode(*life().fleet.Find("a"), {}, {});
  EXPECT_EQ(node.info().unix_nanos() - node.heartbeat_unix_nanos(), -4'000'000'000);
  a.node().clear_unix_nanos();
  a.Restart();
  ASSERT_OK(a.Beat());
  EXPECT_EQ(OneNode(*life().fleet.Find("a"), {}, {}).info().unix_nanos(), 0);
}

}  // namespace
}  // namespace nsa::server
