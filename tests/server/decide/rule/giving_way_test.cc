// Which jobs may give way to another, and what becomes of one that does.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/decide/rule/preemption.h"
#include "server/decide/rule/time_limit.h"
#include "server/decide/transition.h"
#include "tests/server/decide/situation.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using enum Trigger;

const absl::Time kNow = absl::FromUnixSeconds(10'000);
constexpr absl::Duration kAfter = absl::Minutes(10);

v1::StoredJob Stored(Job::State state, absl::Duration for_how_long = absl::Hours(1)) {
  v1::StoredJob job;
  job.mutable_job()->set_id("low");
  job.mutable_job()->set_state(state);
  job.mutable_job()->mutable_spec()->mutable_train()->set_save_every(10);
  job.set_state_unix_nanos(absl::ToUnixNanos(kNow - for_how_long));
  job.set_queued_unix_nanos(5);
  job.add_placements()->set_node("a");
  return job;
}

TEST(MayGiveWay, OnlyAJobThatLosesLittle) {
  struct Case {
    const char* name;
    v1::StoredJob job;
    std::function<void(v1::StoredJob*)> change;
    bool may;
  };
  const v1::StoredJob running = Stored(Job::STATE_RUNNING);
  const v1::StoredJob restarting = Stored(Job::STATE_RESTARTING, absl::Seconds(1));
  const std::vector<Case> cases = {
      {"it runs", running, {}, true},
      {"just long enough", Stored(Job::STATE_RUNNING, kAfter), {}, true},
      {"a moment too short", Stored(Job::STATE_RUNNING, kAfter - absl::Seconds(1)), {}, false},
      {"it saves nothing", running,
       [](auto* x) { x->mutable_job()->mutable_spec()->mutable_train()->set_save_every(0); },
       false},
      {"it has machines of Slurm", running,
       [](auto* x) {
         x->mutable_job()->mutable_spec()->mutable_resources()->set_provisioner("slurm");
       },
       false},
      {"it gives way already", running, [](auto* x) { x->set_preempted_by("w"); }, false},
      {"queued", Stored(Job::STATE_QUEUED), {}, false},
      {"in preflight", Stored(Job::STATE_PREFLIGHT), {}, false},
      {"starting", Stored(Job::STATE_STARTING), {}, false},
      {"stopping", Stored(Job::STATE_STOPPING), {}, false},
      {"moving", restarting, {}, false},
      {"its ranks are being ended", restarting, [](auto* x) { x->set_gang_ending(true); }, false},
      {"it waits for a restart, without ranks", restarting,
       [](auto* x) { x->set_restart_decided(true); }, true},
      {"it has ended", Stored(Job::STATE_SUCCEEDED), {}, false},
  };
  for (const Case& one : cases) {
    v1::StoredJob job = one.job;
    if (one.change) one.change(&job);
    EXPECT_EQ(MayGiveWay(job, kAfter, kNow), one.may) << one.name;
    EXPECT_EQ(RunningFor(job, kAfter, kNow).may_give_way, one.may) << one.name;
  }
}

TEST(RunningFor, KnowsWhoIsLeaving) {
  const auto leaving = [](v1::StoredJob job) { return RunningFor(job, kAfter, kNow).leaving; };
  EXPECT_FALSE(leaving(Stored(Job::STATE_RUNNING)));
  EXPECT_TRUE(leaving(Stored(Job::STATE_STOPPING)));
  EXPECT_TRUE(leaving(Stored(Job::STATE_RESTARTING))) << "it moves";
  v1::StoredJob job = Stored(Job::STATE_RESTARTING);
  job.set_gang_ending(true);
  EXPECT_FALSE(leaving(job)) << "it starts again on its slots";
  job.mutable_job()->set_reason("MOVING");
  EXPECT_TRUE(leaving(job)) << "killed at the deadline of a drain";
  job.mutable_job()->set_reason("RANK_CRASHED");
  job.set_preempted_by("w");
  EXPECT_TRUE(leaving(job)) << "it crashed while it gave way";
  job = Stored(Job::STATE_QUEUED);
  job.clear_placements();
  job.set_preempted_by("w");
  EXPECT_FALSE(leaving(job)) << "it has left";
}

Situation GivingWay(Situation s) {
  s.job.set_preempted_by("jurgent");
  s.gives_way_to = "job urgent";
  s.job.mutable_job()->set_reason("GIVING_WAY");
  return s;
}

TEST(GivingWay, RanksThatEndWellAreQueuedAgain) {
  const Situation ending = GivingWay(In(Job::STATE_RESTARTING));
  const Situation ended = GivingWay(Ended(Job::STATE_RESTARTING, v1::OUTCOME_STOPPED, 7));
  Situation stopping = GivingWay(Ended(Job::STATE_STOPPING, v1::OUTCOME_STOPPED, 7));
  Stop(&stopping, v1::STOP_MODE_GRACEFUL);
  Check({
      {"they still run", ending, {}, "wait"},
      {"all have ended", ended, {}, "MOVED PREEMPTED"},
      {"that was the last step",
       GivingWay(Ended(Job::STATE_RESTARTING, v1::OUTCOME_COMPLETED, 20)),
       {},
       "GANG_COMPLETED"},
      {"a stop at this step was in force", ended,
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 7); }, "GANG_STOPPED"},
      {"a stop at a later step stays in force", ended,
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 8); }, "MOVED PREEMPTED"},
      {"a rank crashed", ending, [](Situation* x) { Crash(x); }, "RANK_LOST RANK_CRASHED"},
      {"a stop by a user wins", stopping, {}, "GANG_STOPPED"},
  });
  EXPECT_THAT(std::get<action::Move>(Next(ended.Facts())).cause.text,
              AllOf(HasSubstr("at step 7"), HasSubstr("gave way to job urgent")));
}

TEST(GivingWay, ACrashMeanwhileIsCountedButTheSlotsAreGivenUp) {
  Situation crashed = GivingWay(In(Job::STATE_RESTARTING));
  Crash(&crashed);
  crashed.job.set_gang_ending(true);
  crashed.job.mutable_job()->set_reason("RANK_CRASHED");
  Situation decided = GivingWay(In(Job::STATE_RESTARTING));
  decided.job.set_restart_decided(true);
  decided.job.set_restart_delay_seconds(8);
  Check({{"its ranks are gone", crashed, {}, "restart RANK_CRASHED in 8s"},
         {"instead of waiting for the restart", decided, {}, "MOVED PREEMPTED"}});
}

TEST(GivingWay, KeepsItsPlaceInTheQueueCountsNoRestartAndTheTimeThatItRan) {
  v1::StoredJob job = Stored(Job::STATE_RUNNING, absl::Seconds(100));
  job.mutable_job()->mutable_spec()->mutable_limits()->set_hours(1);
  std::vector<v1::JobEvent> events;
  ASSERT_OK(Apply(kMoveAsked, {.reason = "GIVING_WAY", .text = "why"}, kNow, &job, &events));
  job.set_preempted_by("jurgent");
  EXPECT_EQ(job.job().state(), Job::STATE_RESTARTING);
  EXPECT_EQ(job.job().reason(), "GIVING_WAY");
  const absl::Time ended = kNow + absl::Seconds(20);
  ASSERT_OK(Apply(kMoved, {.reason = "PREEMPTED", .text = "why"}, ended, &job, &events));
  EXPECT_EQ(job.job().state(), Job::STATE_QUEUED);
  EXPECT_EQ(job.job().reason(), "PREEMPTED");
  EXPECT_EQ(events.back().reason(), "PREEMPTED");
  EXPECT_EQ(job.queued_unix_nanos(), 5) << "its place in the queue";
  EXPECT_EQ(job.placements_size(), 0);
  EXPECT_EQ(job.job().restarts(), 0);
  EXPECT_EQ(job.counted_restart_unix_nanos_size(), 0);
  EXPECT_EQ(RunSeconds(job, ended + absl::Hours(5)), 120) << "time in the queue does not count";
  EXPECT_EQ(job.preempted_by(), "jurgent") << "so that nobody of equal priority takes the slots";
  ASSERT_OK(Apply(kPlaced, {}, ended, &job, &events));
  EXPECT_EQ(job.preempted_by(), "");
}

TEST(GivingWay, EndsWithTheJob) {
  v1::StoredJob job = Stored(Job::STATE_RESTARTING);
  job.set_preempted_by("jurgent");
  std::vector<v1::JobEvent> events;
  ASSERT_OK(Apply(kGracefulStopAsked, {}, kNow, &job, &events));
  ASSERT_OK(Apply(kGangStopped, {}, kNow, &job, &events));
  EXPECT_EQ(job.preempted_by(), "");
}

}  // namespace
}  // namespace nsa::server
