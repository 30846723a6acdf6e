// Cordons, drains and time limits through the reconciler, with fake agents and a fake clock.
#include <cmath>

#include "gmock/gmock.h"
#include "server/act/node/node_control.h"
#include "server/watch/nodes_view.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using v1::Job;

class DrainTest : public Harness {
 protected:
  absl::StatusOr<v1::Node> Cordon(const std::string& node, bool drain = false,
                                  double deadline = 0) {
    v1::CordonNodeRequest request;
    request.set_node(node);
    request.set_reason("new kernel");
    request.set_drain(drain);
    request.set_deadline_seconds(deadline);
    const auto response = life().node_control->Cordon(request, "alice");
    if (!response.ok()) return response.status();
    return response->node();
  }
  absl::Status Drain(const std::string& node, double deadline = 0) {
    return Cordon(node, true, deadline).status();
  }
  absl::Status Uncordon(const std::string& node) {
    v1::UncordonNodeRequest request;
    request.set_node(node);
    return life().node_control->Uncordon(request).status();
  }
  // The machines of the job's ranks.
  std::vector<std::string> Places(const std::string& id) {
    std::vector<std::string> places;
    for (const auto& place : (*store().Find(id))->placements()) places.push_back(place.node());
    return places;
  }
};

TEST_F(DrainTest, ACordonedMachineKeepsItsRanksAndGetsNoOther) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string runs = Submit(Spec("runs"));
  RunUntil(runs, Job::STATE_RUNNING, {&a});
  const auto node = Cordon("a");
  ASSERT_OK(node.status());
  EXPECT_EQ(node->cordon().by(), "alice");
  EXPECT_EQ(node->cordon().reason(), "new kernel");
  EXPECT_THAT(node->job_ids(), ElementsAre(runs));
  const std::string waits = Submit(Spec("waits"));
  for (int i = 0; i < 5; ++i) Round({&a});
  EXPECT_EQ(Get(runs).state(), Job::STATE_RUNNING);
  EXPECT_EQ(Get(waits).state(), Job::STATE_QUEUED);
  EXPECT_EQ(Get(waits).reason(), "CORDONED");
  EXPECT_THAT(Get(waits).message(), HasSubstr("a, cordoned by alice (new kernel)"));
  Restart();
  for (int i = 0; i < 5; ++i) Round({&a});
  EXPECT_EQ(Get(waits).state(), Job::STATE_QUEUED) << "it holds over a restart";
  ASSERT_OK(Uncordon("a"));
  RunUntil(waits, Job::STATE_RUNNING, {&a});
}

TEST_F(DrainTest, AJobThatFitsOnlyThereIsAcceptedWithAWarning) {
  FakeAgent a = MakeAgent("a", 2);
  FakeAgent b = MakeAgent("b", 1);
  Round({&a, &b});
  ASSERT_OK(Cordon("a").status());
  const Job large = Get(Submit(Spec("large", 2)));
  ASSERT_EQ(large.warnings_size(), 1);
  EXPECT_EQ(large.warnings(0).rule(), "CORDONED_MACHINE");
  EXPECT_THAT(large.warnings(0).problem(), HasSubstr("a is cordoned by alice (new kernel)"));
  EXPECT_EQ(Get(Submit(Spec("small"))).warnings_size(), 0) << "another machine has room";
}

TEST_F(DrainTest, ADrainedJobMovesAndContinuesFromItsCheckpoint) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&a});
  FakeAgent b = MakeAgent("b", 2);
  a.Train(6);
  Round({&a, &b});
  ASSERT_OK(Drain("a"));
  Look();
  EXPECT_EQ(Get(id).state(), Job::STATE_RESTARTING);
  EXPECT_EQ(Get(id).reason(), "MOVING");
  a.Checkpoint();
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
  EXPECT_THAT(Places(id), ElementsAre("b", "b"));
  ASSERT_NE(b.Find(0), nullptr);
  EXPECT_GT(b.Find(0)->assignment.resume_from_step(), 0);
  EXPECT_EQ(Get(id).restarts(), 0);
  EXPECT_EQ((*store().Find(id))->counted_restart_unix_nanos_size(), 0);
  EXPECT_THAT(History(id), HasSubstr("ALL_RANKS_UP MOVING MOVED PLACED LAUNCHED ALL_RANKS_UP"));
  const auto node = Cordon("a", true);
  ASSERT_OK(node.status());
  EXPECT_EQ(node->job_ids_size(), 0);
  EXPECT_THAT(life().metrics.Text(),
              HasSubstr(absl::StrCat("nsa_job_restarts_total{job_id=\"", id, "\"} 0")));
}

TEST_F(DrainTest, WithoutAnotherMachineTheJobWaitsAndSaysWhy) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&a});
  ASSERT_OK(Drain("a"));
  RunUntil(id, Job::STATE_QUEUED, {&a});
  Round({&a});
  EXPECT_EQ(Get(id).reason(), "CORDONED");
  EXPECT_THAT(Get(id).message(), HasSubstr("a, drained by alice"));
  ASSERT_OK(Uncordon("a"));
  RunUntil(id, Job::STATE_RUNNING, {&a});
}

TEST_F(DrainTest, AMovedJobIsAheadOfThoseThatWereQueuedLater) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string first = Submit(Spec("first"));
  RunUntil(first, Job::STATE_RUNNING, {&a});
  clock().Advance(absl::Seconds(1));
  const std::string second = Submit(Spec("second"));
  Round({&a});
  ASSERT_OK(Drain("a"));
  RunUntil(first, Job::STATE_QUEUED, {&a});
  FakeAgent b = MakeAgent("b", 1);
  RunUntil(first, Job::STATE_RUNNING, {&a, &b});
  EXPECT_EQ(Get(second).state(), Job::STATE_QUEUED);
}

TEST_F(DrainTest, ARestartInTheMiddleOfADrainFinishesIt) {
  FakeAgent a = MakeAgent("a", 1);
  a.obeys_graceful_stops = false;
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&a});
  ASSERT_OK(Drain("a"));
  Round({&a});
  Restart();
  EXPECT_EQ(Get(id).reason(), "MOVING");
  FakeAgent b = MakeAgent("b", 1);
  a.obeys_graceful_stops = true;
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
  EXPECT_THAT(Places(id), ElementsAre("b"));
}

TEST_F(DrainTest, ADrainBeforeTheFirstTickAfterARestartIsCarriedOut) {
  FakeAgent a = MakeAgent("a", 1);
  FakeAgent b = MakeAgent("b", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&a});
  ASSERT_OK(Drain("a"));
  Restart();
  RunUntil(id, Job::STATE_QUEUED, {&a});
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
  EXPECT_THAT(Places(id), ElementsAre("b"));
}

TEST_F(DrainTest, AfterTheDeadlineRanksThatStandStillAreKilled) {
  FakeAgent a = MakeAgent("a", 2);
  a.obeys_graceful_stops = false;
  FakeAgent b = MakeAgent("b", 1);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
  FakeAgent c = MakeAgent("c", 2);
  ASSERT_OK(Drain("a", 20));
  for (int i = 0; i < 30; ++i) Round({&a, &b, &c});
  EXPECT_EQ(Get(id).state(), Job::STATE_RESTARTING) << "15 s have passed";
  for (int i = 0; i < 20; ++i) Round({&a, &b, &c});
  RunUntil(id, Job::STATE_RUNNING, {&a, &b, &c});
  EXPECT_THAT(Places(id), ElementsAre("c", "c"));
  EXPECT_THAT(History(id), HasSubstr("MOVING MOVING MOVED"));
  EXPECT_EQ(Get(id).restarts(), 0);
}

TEST_F(DrainTest, AStopByAUserDuringADrainWins) {
  FakeAgent a = MakeAgent("a", 1);
  FakeAgent b = MakeAgent("b", 1);
  a.obeys_graceful_stops = false;
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&a});
  ASSERT_OK(Drain("a"));
  Round({&a, &b});
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  a.obeys_graceful_stops = true;
  RunUntil(id, Job::STATE_STOPPED, {&a, &b});
  EXPECT_EQ(Get(id).reason(), "STOPPED");
}

TEST_F(DrainTest, AJobThatWaitsForARestartOnTheMachineLeavesIt) {
  FakeAgent a = MakeAgent("a", 1);
  FakeAgent b = MakeAgent("b", 1);
  v1::JobSpec spec = Spec("demo");
  spec.mutable_restart()->set_backoff_seconds(300);
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&a});
  a.Crash(0, 11);
  RunUntil(id, Job::STATE_RESTARTING, {&a, &b});
  Round({&a, &b});
  ASSERT_OK(Cordon("a").status());
  RunUntil(id, Job::STATE_RUNNING, {&a, &b});
  EXPECT_THAT(Places(id), ElementsAre("b"));
  EXPECT_EQ(Get(id).restarts(), 1) << "the crash";
}

TEST_F(DrainTest, AMachineThatIsAwayCanBeCordonedIfItIsKnown) {
  EXPECT_THAT(Cordon("nobody").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'nobody'")));
  EXPECT_THAT(Uncordon("nobody"), StatusIs(absl::StatusCode::kNotFound));
  FakeAgent a = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&a});
  Restart();
  const auto node = Cordon("a");
  ASSERT_OK(node.status()) << "a job runs there";
  EXPECT_EQ(node->state(), "ABSENT");
  const auto listed = NodesView(life().fleet.Nodes(), {}, life().nodes->All(), {});
  ASSERT_OK(listed.status());
  ASSERT_EQ(listed->nodes_size(), 1);
  EXPECT_EQ(listed->nodes(0).info().name(), "a");
  EXPECT_TRUE(listed->nodes(0).has_cordon());
  EXPECT_OK(Uncordon("a"));
  ASSERT_OK(life().access->Join({.node = "joined", .secret_sha256 = "x", .trusted = true}));
  EXPECT_OK(Cordon("joined").status());
}

TEST_F(DrainTest, RefusesWhatIsOutOfRange) {
  FakeAgent a = MakeAgent("a", 1);
  Round({&a});
  v1::CordonNodeRequest request;
  request.set_node("a");
  const auto cordon = [&] { return life().node_control->Cordon(request, "alice").status(); };
  request.set_reason(std::string(201, 'x'));
  EXPECT_THAT(cordon(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("201 characters (at most 200)")));
  std::string umlauts;
  for (int i = 0; i < 200; ++i) umlauts += "ü";
  request.set_reason(umlauts);
  EXPECT_OK(cordon());
  request.set_deadline_seconds(10);
  EXPECT_THAT(cordon(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without drain")));
  request.set_drain(true);
  EXPECT_OK(cordon());
  for (const double seconds : {0.5, -1.0, 604'801.0, std::nan("")}) {
    request.set_deadline_seconds(seconds);
    EXPECT_THAT(cordon(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 604,800")));
  }
  request.set_deadline_seconds(0);
  request.set_reason("two\nlines\x1b[31m");
  ASSERT_OK(cordon());
  EXPECT_THAT(life().nodes->All().at("a").reason(),
              AllOf(Not(HasSubstr("\n")), Not(HasSubstr("\x1b"))));
}

TEST_F(DrainTest, AJobStopsAtItsTimeLimitAndGetsAsManyHoursAgain) {
  FakeAgent a = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("demo");
  spec.mutable_limits()->set_hours(100.0 / 3600);
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&a});
  for (int i = 0; i < 60; ++i) Round({&a});
  EXPECT_THAT(Get(id).message(), HasSubstr("left (limits.hours)"));
  a.Crash(0, 11);
  RunUntil(id, Job::STATE_RESTARTING, {&a});
  RunUntil(id, Job::STATE_RUNNING, {&a});
  Restart();
  for (int i = 0; i < 40; ++i) Round({&a});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << "about 50 s";
  for (int i = 0; i < 100 && Get(id).state() == Job::STATE_RUNNING; ++i) Round({&a});
  RunUntil(id, Job::STATE_STOPPED, {&a});
  EXPECT_EQ(Get(id).reason(), "TIME_LIMIT");
  EXPECT_THAT(Get(id).message(), HasSubstr("nsactl resume " + id));
  const double ran = (*store().Find(id))->run_seconds();
  EXPECT_GE(ran, 100);
  EXPECT_LT(ran, 104) << "it stops soon after";
  ASSERT_OK(Resume(id));
  EXPECT_EQ((*store().Find(id))->run_seconds(), 0);
  RunUntil(id, Job::STATE_RUNNING, {&a});
  for (int i = 0; i < 100; ++i) Round({&a});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << "50 s of another 100";
}

}  // namespace
}  // namespace nsa::server
