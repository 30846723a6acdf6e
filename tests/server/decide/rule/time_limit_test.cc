// limits.hours: how long ranks have run, and what happens at the limit.
#include "server/decide/rule/time_limit.h"

#include "common/estimate/run_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/decide/transition.h"
#include "tests/server/decide/situation.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using enum Trigger;

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(1'800'000'000 + seconds); }

// A job with a limit of 0.1 h (360 s) that entered its state at At(0).
v1::StoredJob Limited(Job::State state, double run_seconds = 0) {
  v1::StoredJob job;
  job.mutable_job()->set_name("demo");
  job.mutable_job()->set_state(state);
  job.mutable_job()->mutable_spec()->mutable_limits()->set_hours(0.1);
  job.set_state_unix_nanos(absl::ToUnixNanos(At(0)));
  job.set_run_seconds(run_seconds);
  return job;
}

TEST(TimeLimit, CountsOnlyWhileRanksExist) {
  for (const Job::State state :
       {Job::STATE_STARTING, Job::STATE_RUNNING, Job::STATE_STOPPING, Job::STATE_RESTARTING}) {
    EXPECT_EQ(RunSeconds(Limited(state, 30), At(10)), 40) << StateName(state);
  }
  for (const Job::State state : {Job::STATE_QUEUED, Job::STATE_PREFLIGHT, Job::STATE_STOPPED}) {
    EXPECT_EQ(RunSeconds(Limited(state, 30), At(10)), 30) << StateName(state);
  }
  v1::StoredJob waits = Limited(Job::STATE_RESTARTING, 30);
  waits.set_restart_decided(true);
  EXPECT_EQ(RunSeconds(waits, At(10)), 30) << "nothing runs until the next start";
  EXPECT_EQ(RunSeconds(Limited(Job::STATE_RUNNING, 30), At(-99)), 30)
      << "a clock that was set back";
}

TEST(TimeLimit, AddsUpOverAllStarts) {
  v1::StoredJob job = Limited(Job::STATE_PREFLIGHT);
  std::vector<v1::JobEvent> events;
  ASSERT_OK(Apply(kPreflightPassed, {}, At(50), &job, &events));
  ASSERT_OK(Apply(kAllRunning, {}, At(55), &job, &events));
  ASSERT_OK(Apply(kRankLost, {}, At(100), &job, &events));
  EXPECT_EQ(RunSeconds(job, At(103)), 53) << "since the start of the generation";
  ASSERT_OK(ApplyRestart({}, {.restart = true}, At(104), &job, &events));
  EXPECT_EQ(RunSeconds(job, At(200)), 54);
  ASSERT_OK(ApplyRestart({}, {.restart = true}, At(210), &job, &events));
  ASSERT_OK(Apply(kRestartDue, {}, At(220), &job, &events));
  EXPECT_EQ(RunSeconds(job, At(221)), 55);
  ASSERT_OK(Apply(kAllRunning, {}, At(230), &job, &events));
  ASSERT_OK(Apply(kMoveAsked, {}, At(240), &job, &events));
  ASSERT_OK(Apply(kMoved, {}, At(250), &job, &events));
  EXPECT_EQ(RunSeconds(job, At(999)), 84) << "the queue does not count";
}

TEST(TimeLimit, TheRunTimeThatClientsSeeHasThatBeforeAResume) {
  v1::StoredJob job = Limited(Job::STATE_RUNNING, 30);
  job.set_earlier_run_seconds(100);
  EXPECT_EQ(TotalRunSeconds(job, At(10)), 140);
  v1::Job seen;
  seen.set_start_unix_nanos(1);
  ShowRunTime(job, &seen);
  EXPECT_EQ(nsa::RunSeconds(seen, At(10)), 140);
  v1::Job waits = seen;
  waits.clear_running_since_unix_nanos();
  job.mutable_job()->set_state(Job::STATE_QUEUED);
  ShowRunTime(job, &waits);
  EXPECT_EQ(nsa::RunSeconds(waits, At(9'999)), 130);
}

TEST(TimeLimit, IsReachedAtItsSecondAndOnlyIfThereIsOne) {
  EXPECT_FALSE(TimeIsUp(Limited(Job::STATE_RUNNING, 300), At(59)));
  EXPECT_TRUE(TimeIsUp(Limited(Job::STATE_RUNNING, 300), At(60)));
  v1::StoredJob unlimited = Limited(Job::STATE_RUNNING, 1e9);
  unlimited.mutable_job()->mutable_spec()->clear_limits();
  EXPECT_FALSE(TimeIsUp(unlimited, At(60)));
  EXPECT_EQ(TimeLeftText(unlimited, At(60)), "");
}

TEST(TimeLimit, IsShownInSteps) {
  v1::StoredJob job = Limited(Job::STATE_RUNNING);
  EXPECT_EQ(TimeLeftText(job, At(61)), "4 min of 6 min left (limits.hours)");
  EXPECT_EQ(TimeLeftText(job, At(323)), "30 s of 6 min left (limits.hours)");
  EXPECT_EQ(TimeLeftText(job, At(999)), "0 s of 6 min left (limits.hours)");
  job.mutable_job()->mutable_spec()->mutable_limits()->set_hours(24);
  EXPECT_EQ(TimeLeftText(job, At(0)), "24 h of 24 h left (limits.hours)");
  EXPECT_EQ(TimeLeftText(job, At(3'600 * 20 + 2'880)), "3 h 12 min of 24 h left (limits.hours)");
}

Situation Over(Situation s) {
  s.job.mutable_job()->set_name("demo");
  s.job.mutable_job()->mutable_spec()->mutable_limits()->set_hours(0.1);
  s.job.set_run_seconds(360);
  s.job.set_state_unix_nanos(absl::ToUnixNanos(s.Facts().wall_time));
  return s;
}

TEST(TimeLimit, StopsRanksThatRun) {
  const Situation running = Over(In(Job::STATE_RUNNING));
  Check({
      {"running", running, {}, "TIME_LIMIT_REACHED"},
      {"starting",
       Over(In(Job::STATE_STARTING, v1::WorkerObservation::STATE_STARTING)),
       {},
       "TIME_LIMIT_REACHED"},
      {"a machine is drained as well: it stops", running,
       [](Situation* x) { x->leave.kind = Leave::Kind::kMoveNow; }, "TIME_LIMIT_REACHED"},
      {"a stop at a later step is in force: what comes first", running,
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 90); }, "TIME_LIMIT_REACHED"},
      {"the ranks have reached that step", Over(Ended(Job::STATE_RUNNING, v1::OUTCOME_STOPPED, 9)),
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 9); }, "GANG_STOPPED"},
      {"a second is left", running, [](Situation* x) { x->job.set_run_seconds(359); }, "wait"},
      {"a user stops it already", Over(In(Job::STATE_STOPPING)),
       [](Situation* x) { Stop(x, v1::STOP_MODE_GRACEFUL); }, "wait"},
  });
}

TEST(TimeLimit, TheEndSaysWhyAndWhatToDo) {
  Situation ended = Over(Ended(Job::STATE_STOPPING, v1::OUTCOME_STOPPED, 9));
  ended.job.mutable_job()->set_reason("TIME_LIMIT");
  Stop(&ended, v1::STOP_MODE_GRACEFUL);
  Check(
      {{"stopped", ended, {}, "GANG_STOPPED TIME_LIMIT"},
       {"all ranks crashed instead", ended, [](Situation* x) { Crash(x); },
        "GANG_STOPPED TIME_LIMIT"},
       {"a user asked for it", ended,
        [](Situation* x) { x->job.mutable_job()->set_reason("STOPPED_BY_USER"); }, "GANG_STOPPED"},
       {"that was the last step", Over(Ended(Job::STATE_STOPPING, v1::OUTCOME_COMPLETED, 20)),
        [](Situation* x) { x->job.mutable_job()->set_reason("TIME_LIMIT"); }, "GANG_COMPLETED"}});
  EXPECT_THAT(std::get<action::Move>(Next(ended.Facts())).cause.text,
              AllOf(HasSubstr("at step 9"), HasSubstr("limits.hours: 0.1"),
                    HasSubstr("nsactl resume " + ended.job.job().id())));
}

TEST(TimeLimit, StaysTheReasonUnlessAUserAsks) {
  v1::StoredJob job = Limited(Job::STATE_RUNNING, 360);
  job.mutable_job()->mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  job.mutable_job()->mutable_stop()->set_at_step(90);
  std::vector<v1::JobEvent> events;
  ASSERT_OK(Apply(kTimeLimitReached, {.text = "time"}, At(1), &job, &events));
  EXPECT_EQ(job.job().state(), Job::STATE_STOPPING);
  EXPECT_EQ(job.job().stop().mode(), v1::STOP_MODE_GRACEFUL);
  EXPECT_EQ(job.job().stop().at_step(), 0);
  ASSERT_OK(Apply(kRankLost, {.reason = "RANK_CRASHED"}, At(2), &job, &events));
  EXPECT_EQ(job.job().reason(), "TIME_LIMIT");
  EXPECT_EQ(job.job().message(), "time");
  EXPECT_EQ(events.back().reason(), "RANK_CRASHED");
  ASSERT_OK(Apply(kStopNowAsked, {.reason = "STOP_GRACE_EXCEEDED"}, At(3), &job, &events));
  EXPECT_EQ(job.job().reason(), "TIME_LIMIT");
  ASSERT_OK(Apply(kStopNowAsked, {}, At(4), &job, &events));
  EXPECT_EQ(job.job().reason(), "STOPPED_BY_USER");
}

}  // namespace
}  // namespace nsa::server
