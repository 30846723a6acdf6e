// A job that goes on with fewer ranks after one of its machines is lost (restart.min_ranks).
#include "gmock/gmock.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using v1::Job;

class FewerRanksTest : public Harness {
 protected:
  FakeAgent Machine(const std::string& name) {
    FakeAgent agent = MakeAgent(name, 2);
    agent.node().set_rank_address("10.0.0.2");
    return agent;
  }
  v1::JobSpec FourOnTwo(int min_ranks) {
    v1::JobSpec spec = Spec("demo", 4);
    spec.mutable_resources()->set_nodes(2);
    spec.mutable_restart()->set_min_ranks(min_ranks);
    return spec;
  }
  std::vector<std::string> Places(const std::string& id) {
    std::vector<std::string> places;
    for (const auto& place : (*store().Find(id))->placements()) places.push_back(place.node());
    return places;
  }
  // Lets the job of four ranks run on `a` and `b`, loses `b`, and waits until it runs on `a`.
  std::string LoseOne(FakeAgent* a, FakeAgent* b) {
    Round({a, b});
    const std::string id = Submit(FourOnTwo(2));
    for (int i = 0; i < 25; ++i) Round({a, b});  // all machines are back after a start
    RunUntil(id, Job::STATE_RUNNING, {a, b});
    EXPECT_THAT(Places(id), ElementsAre("a", "a", "b", "b"));
    EXPECT_EQ(Get(id).message(), "4 ranks up");
    for (int i = 0; i < 2000 && !(Get(id).state() == Job::STATE_RUNNING && Places(id).size() == 2);
         ++i) {
      Round({a});
    }
    return id;
  }
};

TEST_F(FewerRanksTest, TheRestGoesOnWhenAMachineIsLost) {
  FakeAgent a = Machine("a"), b = Machine("b");
  const std::string id = LoseOne(&a, &b);
  EXPECT_EQ(StateName(Get(id).state()), "RUNNING") << Get(id).message();
  EXPECT_THAT(Places(id), ElementsAre("a", "a"));
  EXPECT_EQ(Get(id).message(), "2 of 4 ranks up");
  EXPECT_EQ(Get(id).ranks_size(), 2);
  EXPECT_EQ(Get(id).spec().resources().gpus(), 4) << "what it asks for stays";
  const auto events = store().Events(id, 0, 1'000);
  ASSERT_OK(events.status());
  int told = 0;
  for (const v1::JobEvent& event : *events) {
    told += event.text().find("2 of 4 ranks") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(told, 3) << "placed, launched, up";
}

TEST_F(FewerRanksTest, ItStaysAsItIsUntilItsNextStartAndThenTakesAll) {
  FakeAgent a = Machine("a"), b = Machine("b");
  const std::string id = LoseOne(&a, &b);
  const int64_t generation = Get(id).generation();
  for (int i = 0; i < 40; ++i) Round({&a, &b});
  EXPECT_EQ(Get(id).generation(), generation) << "there is room again, and nothing happens";
  a.Crash(0, 9);
  for (int i = 0; i < 2000 && !(Get(id).state() == Job::STATE_RUNNING && Places(id).size() == 4);
       ++i) {
    Round({&a, &b});
  }
  EXPECT_EQ(Places(id).size(), 4u) << Get(id).message();
  EXPECT_EQ(Get(id).message(), "4 ranks up");
  EXPECT_EQ(Get(id).generation(), generation + 1);
  EXPECT_THAT(History(id), HasSubstr("RESTART_SCHEDULED MOVED PLACED LAUNCHED ALL_RANKS_UP"));
}

TEST_F(FewerRanksTest, SoDoesAJobThatIsStoppedAndResumed) {
  FakeAgent a = Machine("a"), b = Machine("b");
  const std::string id = LoseOne(&a, &b);
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  RunUntil(id, Job::STATE_STOPPED, {&a, &b});
  ASSERT_OK(Resume(id));
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
  EXPECT_EQ(Get(id).message(), "4 ranks up");
}

TEST_F(FewerRanksTest, AWorkerIsToldHowManyRanksThereAre) {
  FakeAgent a = Machine("a"), b = Machine("b");
  const std::string id = LoseOne(&a, &b);
  v1::HeartbeatRequest beat;
  *beat.mutable_node() = a.node();
  const auto answer = life().service->Answer(beat, LocalCaller());
  ASSERT_OK(answer.status());
  ASSERT_EQ(answer->desired_size(), 2);
  EXPECT_EQ(answer->desired(0).world_size(), 2);
  EXPECT_EQ(answer->desired(0).spec().resources().gpus(), 2);
  EXPECT_EQ(answer->desired(0).spec().resources().nodes(), 1);
  EXPECT_FALSE(answer->desired(0).several_machines());
}

TEST_F(FewerRanksTest, AJobThatAsksForAllWaits) {
  FakeAgent a = Machine("a"), b = Machine("b");
  Round({&a, &b});
  v1::JobSpec spec = FourOnTwo(2);
  spec.mutable_restart()->clear_min_ranks();
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
  for (int i = 0; i < 1500; ++i) Round({&a});
  EXPECT_EQ(StateName(Get(id).state()), "QUEUED");
}

}  // namespace
}  // namespace nsa::server
