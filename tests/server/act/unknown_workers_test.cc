// Workers that a restored or a new store does not know, through the reconciler, with fake agents.
#include "server/act/unknown_workers.h"

#include <csignal>
#include <filesystem>

#include "gmock/gmock.h"
#include "server/watch/nodes_view.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using v1::Job;

class UnknownWorkersTest : public Harness {
 protected:
  // The id of a job that runs there.
  std::string RunJob(FakeAgent* agent) {
    const std::string id = Submit(Spec("demo"));
    RunUntil(id, Job::STATE_RUNNING, {agent});
    return id;
  }
  fs::path State() { return folder_ / "state"; }
  // Copies the store as it is now. Restart(Back(copy)) then puts it back.
  fs::path Copy() {
    const fs::path copy = folder_ / "copy";
    Restart([&] { fs::copy(State(), copy, fs::copy_options::recursive); });
    return copy;
  }
  std::function<void()> Back(const fs::path& copy) {
    return [this, copy] {
      fs::remove_all(folder_ / "aside");
      fs::rename(State(), folder_ / "aside");
      fs::rename(copy, State());
    };
  }
  // Moves the state folder away; the next coordinator has a new one.
  void LoseTheStore() {
    Restart([&] {
      fs::rename(State(), folder_ / "lost");
      fs::create_directories(State());
    });
  }
  void Drain(const std::string& node, double deadline = 0) {
    v1::CordonNodeRequest request;
    request.set_node(node);
    request.set_drain(true);
    request.set_deadline_seconds(deadline);
    ASSERT_OK(life().node_control->Cordon(request, "alice").status());
  }
  void Uncordon(const std::string& node) {
    v1::UncordonNodeRequest request;
    request.set_node(node);
    ASSERT_OK(life().node_control->Uncordon(request).status());
  }
  v1::Node Node(const std::string& name) {
    const auto found = life().fleet.Find(name);
    EXPECT_TRUE(found.has_value());
    return OneNode(found.value_or(NodeView()), store().Active(), life().nodes->All());
  }
  // Heartbeats of a healthy machine for some time.
  void Beat(FakeAgent* agent, absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(1)) {
      clock().Advance(absl::Seconds(1));
      EXPECT_OK(agent->Beat());
    }
  }
};

TEST_F(UnknownWorkersTest, TheStoreKeepsItsIdOverARestartAndInACopy) {
  const std::string id = store().id();
  EXPECT_EQ(id.size(), 13u);
  const fs::path copy = Copy();
  EXPECT_EQ(store().id(), id);
  Restart(Back(copy));
  EXPECT_EQ(store().id(), id);
  LoseTheStore();
  EXPECT_NE(store().id(), id);
}

TEST_F(UnknownWorkersTest, ARankThatIsYoungerThanTheBackupEndsWithACheckpoint) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string old = Submit(Spec("old"));
  RunUntil(old, Job::STATE_RUNNING, {&a});
  const fs::path copy = Copy();
  const std::string young = Submit(Spec("young"));
  RunUntil(young, Job::STATE_RUNNING, {&a});
  a.Train(3);
  Round({&a});
  Restart(Back(copy));
  Round({&a});
  const FakeAgent::Worker asked = a.workers().at({young, 1, 0});
  EXPECT_EQ(asked.assignment.stop().mode(), v1::STOP_MODE_GRACEFUL);
  EXPECT_EQ(asked.seen.exit_signal(), 0) << "it ends by itself";
  EXPECT_EQ(asked.records.back().finished().outcome(), v1::OUTCOME_STOPPED);
  for (int i = 0; i < 3; ++i) Round({&a});
  EXPECT_FALSE(a.workers().contains({young, 1, 0})) << "removed, as any that is not desired";
  EXPECT_EQ(a.workers().at({old, 1, 0}).seen.state(), v1::WorkerObservation::STATE_RUNNING);
  EXPECT_EQ(Get(old).state(), Job::STATE_RUNNING);
}

TEST_F(UnknownWorkersTest, AStartThatIsYoungerThanTheBackupEndsWithACheckpointToo) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string id = RunJob(&a);
  const fs::path copy = Copy();
  a.Crash(0, SIGSEGV);
  RunUntil(id, Job::STATE_RESTARTING, {&a});
  RunUntil(id, Job::STATE_RUNNING, {&a});
  ASSERT_EQ(Get(id).generation(), 2);
  Restart(Back(copy));
  ASSERT_EQ(Get(id).generation(), 1);
  Round({&a});
  EXPECT_EQ(a.workers().at({id, 2, 0}).seen.exit_signal(), 0);
  EXPECT_EQ(a.workers().at({id, 2, 0}).records.back().finished().outcome(), v1::OUTCOME_STOPPED);
}

TEST_F(UnknownWorkersTest, ARankOfAnEarlierStartIsKilledAtOnceAsBefore) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string id = RunJob(&a);
  v1::HeartbeatRequest heartbeat;
  heartbeat.mutable_node()->set_name("a");
  v1::WorkerObservation* worker = heartbeat.add_workers();
  worker->set_job_id(id);
  worker->set_generation(0);
  worker->set_state(v1::WorkerObservation::STATE_RUNNING);
  const auto answer = life().service->Answer(heartbeat, LocalCaller());
  ASSERT_OK(answer);
  EXPECT_THAT(answer->unknown(), IsEmpty());
}

TEST_F(UnknownWorkersTest, ARankThatDoesNotEndIsKilledAfterFiveMinutes) {
  FakeAgent a = MakeAgent("a", 1);
  const fs::path copy = Copy();
  const std::string young = Submit(Spec("young"));
  RunUntil(young, Job::STATE_RUNNING, {&a});
  a.obeys_graceful_stops = false;
  Restart(Back(copy));
  const FakeAgent::Key key = {young, 1, 0};
  Beat(&a, kUnknownPatience - absl::Seconds(1));
  EXPECT_TRUE(a.workers().at(key).running());
  Beat(&a, absl::Seconds(2));
  EXPECT_EQ(a.workers().at(key).seen.exit_signal(), SIGKILL);
}

TEST_F(UnknownWorkersTest, RanksOfAnotherStoreKeepRunningAndNoneIsPlacedBesideThem) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string id = RunJob(&a);
  const std::string other = store().id();
  LoseTheStore();
  const std::string waits = Submit(Spec("waits"));
  for (int i = 0; i < 40; ++i) Round({&a});
  Beat(&a, absl::Minutes(10));
  EXPECT_TRUE(a.workers().at({id, 1, 0}).running());
  EXPECT_EQ(a.workers().size(), 1u);
  EXPECT_EQ(Get(waits).state(), Job::STATE_QUEUED);
  const v1::Node node = Node("a");
  EXPECT_EQ(node.state(), "OTHER_STORE");
  EXPECT_EQ(node.store_id(), other);
}

TEST_F(UnknownWorkersTest, WhenTheRightStoreIsBackTheyGoOnAndNoRecordIsLost) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string id = RunJob(&a);
  const int64_t pid = a.Find(0)->seen.pid();
  LoseTheStore();
  for (int i = 0; i < 5; ++i) {
    Round({&a});
    a.Train(1);
  }
  Restart([&] {
    fs::remove_all(State());
    fs::rename(folder_ / "lost", State());
  });
  for (int i = 0; i < 5; ++i) Round({&a});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  EXPECT_EQ(a.Find(0)->seen.pid(), pid);
  EXPECT_EQ(StoredSteps(id, 0), UpTo(5));
  EXPECT_EQ(Node("a").state(), "READY");
}

TEST_F(UnknownWorkersTest, ADrainEndsTheRanksOfAnotherStoreWithACheckpoint) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string id = RunJob(&a);
  LoseTheStore();
  Round({&a});
  a.obeys_graceful_stops = false;
  Drain("a");
  Beat(&a, absl::Minutes(10));
  EXPECT_EQ(a.workers().at({id, 1, 0}).assignment.stop().mode(), v1::STOP_MODE_GRACEFUL);
  EXPECT_TRUE(a.workers().at({id, 1, 0}).running()) << "a drain without a deadline kills nobody";
  a.obeys_graceful_stops = true;
  for (int i = 0; i < 3; ++i) Round({&a});
  EXPECT_THAT(a.workers(), IsEmpty());
  EXPECT_EQ(Node("a").state(), "READY");
  Uncordon("a");
  const std::string next = Submit(Spec("next"));
  RunUntil(next, Job::STATE_RUNNING, {&a});
}

TEST_F(UnknownWorkersTest, AfterTheDeadlineOfADrainTheyAreKilled) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string id = RunJob(&a);
  LoseTheStore();
  Round({&a});
  a.obeys_graceful_stops = false;
  Drain("a", 60);
  Beat(&a, absl::Seconds(62));
  EXPECT_THAT(a.workers(), IsEmpty());
}

}  // namespace
}  // namespace nsa::server
