// The wall clock of the coordinator's machine is set while jobs run.
#include "server/act/clock_follower.h"

#include <csignal>

#include "gmock/gmock.h"
#include "server/decide/rule/time_limit.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using v1::Job;

class ClockFollowerTest : public Harness {
 protected:
  std::string RunLimited(double hours, FakeAgent* agent) {
    v1::JobSpec spec = Spec("limited");
    spec.mutable_limits()->set_hours(hours);
    const std::string id = Submit(spec);
    RunUntil(id, Job::STATE_RUNNING, {agent});
    return id;
  }
  double RanFor(const std::string& id) { return RunSeconds(**store().Find(id), clock().Wall()); }
};

TEST_F(ClockFollowerTest, AStepOfTheClockDoesNotReachATimeLimit) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string id = RunLimited(5, &a);
  for (const absl::Duration step : {absl::Hours(6), -absl::Hours(12), absl::Hours(48)}) {
    clock().JumpWall(step);
    for (int i = 0; i < 5; ++i) Round({&a});
    EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << step;
    EXPECT_LT(RanFor(id), 60) << step;
    EXPECT_GT(RanFor(id), 1) << step;
  }
}

// Between two looks at the clock, or while the store cannot note the step.
TEST_F(ClockFollowerTest, AStepThatIsNotNotedYetMovesNoTime) {
  ClockFollower follower(store(), *life().nodes, clock(), "");
  follower.Look();
  const absl::Time before = clock().Wall();
  EXPECT_EQ(follower.Now(), before);
  clock().JumpWall(absl::Hours(6));
  EXPECT_EQ(follower.Now(), before);
  clock().Advance(absl::Minutes(1));
  EXPECT_EQ(follower.Now(), before + absl::Minutes(1));
  follower.Look();
  EXPECT_EQ(follower.Now(), clock().Wall());
}

TEST_F(ClockFollowerTest, NorDoesOneWhileNoCoordinatorRuns) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string id = RunLimited(5, &a);
  Restart([&] { clock().JumpWall(absl::Hours(6)); });
  for (int i = 0; i < 5; ++i) Round({&a});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  EXPECT_LT(RanFor(id), 60);
}

TEST_F(ClockFollowerTest, TimeThatHasPassedStillCounts) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string id = RunLimited(1, &a);
  clock().JumpWall(absl::Hours(6));
  Round({&a});
  Restart([&] { clock().Advance(absl::Hours(1)); });
  for (int i = 0; i < 5; ++i) Round({&a});
  EXPECT_EQ(Get(id).reason(), "TIME_LIMIT");
}

TEST_F(ClockFollowerTest, TimesThatWereNotedSinceTheStepStay) {
  FakeAgent a = MakeAgent("a", 2);
  const std::string old = RunLimited(5, &a);
  clock().JumpWall(absl::Hours(6));
  const std::string young = Submit(Spec("young"));  // before the next look
  const int64_t queued = (*store().Find(young))->queued_unix_nanos();
  Round({&a});
  EXPECT_EQ((*store().Find(young))->queued_unix_nanos(), queued);
  EXPECT_LT(RanFor(old), 60);
}

TEST_F(ClockFollowerTest, TheQueueKeepsItsOrder) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string runs = RunLimited(5, &a);
  const std::string first = Submit(Spec("first"));
  Round({&a});
  clock().JumpWall(-absl::Hours(6));
  Round({&a});
  const std::string second = Submit(Spec("second"));
  Round({&a});
  EXPECT_EQ(Get(first).queue_position(), 1);
  EXPECT_EQ(Get(second).queue_position(), 2);
}

TEST_F(ClockFollowerTest, TheDeadlineOfADrainMovesToo) {
  FakeAgent a = MakeAgent("a", 1);
  a.obeys_graceful_stops = false;
  const std::string id = RunLimited(5, &a);
  v1::CordonNodeRequest drain;
  drain.set_node("a");
  drain.set_drain(true);
  drain.set_deadline_seconds(600);
  ASSERT_OK(life().node_control->Cordon(drain, "alice").status());
  Round({&a});
  clock().JumpWall(absl::Hours(6));
  for (int i = 0; i < 10; ++i) Round({&a});
  EXPECT_TRUE(a.Find(0)->running());
  for (int i = 0; i < 1'200 && a.Find(0)->running(); ++i) Round({&a});
  EXPECT_EQ(a.Find(0)->seen.exit_signal(), SIGKILL) << "after ten minutes";
}

}  // namespace
}  // namespace nsa::server
