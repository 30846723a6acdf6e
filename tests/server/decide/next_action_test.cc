// Tests Next() with tables: a situation in, an action out.
#include "server/decide/next_action.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/decide/situation.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

TEST(NextAction, StatesWithoutAGangWait) {
  for (const Job::State state : {Job::STATE_QUEUED, Job::STATE_SUCCEEDED, Job::STATE_FAILED,
                                 Job::STATE_STOPPED, Job::STATE_UNSPECIFIED}) {
    EXPECT_EQ(Describe(Next(In(state).Facts())), "wait") << StateName(state);
  }
}

TEST(NextAction, InPreflight) {
  const Situation s = In(Job::STATE_PREFLIGHT);
  Check({
      {"machines were heard and measured", s, {}, "check"},
      {"a check runs", s, [](Situation* x) { x->checking = true; }, "wait"},
      {"a machine was not heard since the placement", s,
       [](Situation* x) { x->ranks[1].heard_since_told = false; }, "wait"},
      {"not measured yet", s, [](Situation* x) { x->ranks[1].measured_since_told = false; },
       "wait"},
      {"a driver that hangs is not waited for", s,
       [](Situation* x) {
         x->ranks[1].measured_since_told = false;
         x->waited = absl::Seconds(30);
       },
       "check"},
      {"a machine is lost", s, [](Situation* x) { x->ranks[0].node = RankView::Node::kLost; },
       "NODE_GONE"},
      {"a machine is unknown", s,
       [](Situation* x) {
         x->ranks[0].node = RankView::Node::kUnknown;
         x->ranks[0].heard_since_told = false;
       },
       "wait"},
  });
}

TEST(NextAction, WithAGang) {
  const Situation starting = In(Job::STATE_STARTING);
  const Situation running = In(Job::STATE_RUNNING);
  const Situation stopped = Ended(Job::STATE_RUNNING, v1::OUTCOME_STOPPED, 7);
  Check({
      {"every rank is up", starting, {}, "ALL_RUNNING"},
      {"a rank is not up", starting,
       [](Situation* x) { x->ranks[1].worker->set_state(v1::WorkerObservation::STATE_STARTING); },
       "wait"},
      {"all run", running, {}, "wait"},
      {"a rank crashed", running, [](Situation* x) { Crash(x); }, "RANK_LOST RANK_CRASHED"},
      {"a machine is lost", running, [](Situation* x) { x->ranks[0].node = RankView::Node::kLost; },
       "RANK_LOST NODE_LOST"},
      {"all steps are done",
       Ended(Job::STATE_RUNNING, v1::OUTCOME_COMPLETED, 20),
       {},
       "GANG_COMPLETED"},
      {"the data ended first", stopped,
       [](Situation* x) { x->ranks[0].finished->set_reason("DATA_EXHAUSTED"); },
       "GANG_COMPLETED DATA_EXHAUSTED"},
      {"stopped though nobody asked", stopped, {}, "RANK_LOST PREEMPTED"},
      {"stopped before the step asked for", stopped,
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 9); }, "RANK_LOST PREEMPTED"},
      {"stopped at the step asked for", stopped,
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 7); }, "GANG_STOPPED"},
      {"stopped behind the step asked for", stopped,
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 5); }, "GANG_STOPPED STOPPED_LATE"},
  });
}

TEST(NextAction, AStopThatNobodyAskedForNamesWhoStoppedIt) {
  Situation stopped = Ended(Job::STATE_RUNNING, v1::OUTCOME_STOPPED, 7);
  const auto text = [&] { return std::get<action::Move>(Next(stopped.Facts())).cause.text; };
  EXPECT_EQ(text(), "the workers were stopped from outside this service at step 7");
  v1::Allocation& allocation = *stopped.job.mutable_job()->mutable_allocation();
  stopped.job.mutable_job()->mutable_spec()->mutable_resources()->set_provisioner("slurm");
  allocation.set_state(v1::Allocation::STATE_RUNNING);
  allocation.set_end_unix_nanos(absl::ToUnixNanos(stopped.Facts().wall_time + absl::Seconds(30)));
  EXPECT_EQ(text(),
            "its allocation ends at 2027-01-15T08:00:30Z: the workers were asked to save a "
            "checkpoint, and stopped at step 7");
  EXPECT_EQ(Describe(Next(stopped.Facts())), "RANK_LOST PREEMPTED");
}

TEST(NextAction, HowAJobEndedIsToldInTheWordsOfItsRanks) {
  const auto text = [](v1::Outcome outcome, const char* said, int64_t asked_at) {
    Situation ended = Ended(Job::STATE_RUNNING, outcome, 7);
    for (RankView& rank : ended.ranks) rank.finished->set_text(said);
    Stop(&ended, v1::STOP_MODE_AT_STEP, asked_at);
    return std::get<action::Move>(Next(ended.Facts())).cause.text;
  };
  EXPECT_EQ(text(v1::OUTCOME_COMPLETED, "all 7 steps done", 9), "all 7 steps done");
  EXPECT_EQ(text(v1::OUTCOME_STOPPED, "stopped as asked after step 7", 7),
            "stopped as asked after step 7");
  EXPECT_EQ(text(v1::OUTCOME_STOPPED, "stopped as asked after step 7", 5),
            "stopped as asked after step 7; the stop reached the ranks after step 5");
  EXPECT_EQ(text(v1::OUTCOME_STOPPED, "stopped as asked after step 7", 9),
            "the workers were stopped from outside this service at step 7");
  EXPECT_EQ(text(v1::OUTCOME_STOPPED, "", 7), "at step 7");
}

TEST(NextAction, AHangIsDumpedThenEnded) {
  Situation stuck = In(Job::STATE_RUNNING);
  for (RankView& rank : stuck.ranks) rank.worker->set_seconds_since_progress(40);
  const absl::Duration now = stuck.Facts().now;
  const auto suspected_for = [now](absl::Duration time) {
    return [=](Situation* x) { x->hang = {.suspected = true, .suspected_since = now - time}; };
  };
  Check({
      {"no progress", stuck, {}, "dump"},
      {"no progress for half the limit", stuck,
       [](Situation* x) {
         for (RankView& rank : x->ranks) rank.worker->set_seconds_since_progress(16);
       },
       "save"},
      {"the dumps are under way", stuck, suspected_for(absl::Seconds(1)), "wait"},
      {"still no progress", stuck, suspected_for(kDumpGrace), "RANK_LOST HANG"},
      {"progress again", In(Job::STATE_RUNNING), suspected_for(absl::Seconds(1)), "end suspicion"},
      {"a generation's first steps may take longer", stuck,
       [](Situation* x) {
         for (RankView& rank : x->ranks) rank.first_step = 6;
       },
       "wait"},
  });
}

TEST(NextAction, AGangThatEndedStartsAgainOrNot) {
  Situation ending = In(Job::STATE_RESTARTING);
  ending.job.set_gang_ending(true);
  Situation crashed = ending;
  Crash(&crashed);
  Situation stopped = Ended(Job::STATE_RESTARTING, v1::OUTCOME_STOPPED, 7);
  stopped.job.set_gang_ending(true);
  Situation final = Ended(Job::STATE_RESTARTING, v1::OUTCOME_FAILED_FINAL, 7);
  final.job.set_gang_ending(true);
  const auto stored = [](const char* reason) {
    return [reason](Situation* x) { x->job.mutable_job()->set_reason(reason); };
  };
  Check({
      {"a rank is left", ending, {}, "wait"},
      {"the first rank that died is the cause", crashed, stored("NODE_LOST"),
       "restart RANK_CRASHED in 8s"},
      {"a hang was known before", crashed, stored("HANG"), "restart HANG in 8s"},
      {"so was a stop from outside", crashed, stored("PREEMPTED"), "restart PREEMPTED in 8s"},
      {"no rank died by itself", stopped, stored("WORKER_VANISHED"),
       "restart WORKER_VANISHED in 8s"},
      {"a failure that would repeat", final,
       [](Situation* x) { x->ranks[0].finished->set_reason("NO_VALID_CHECKPOINT"); },
       "FAILED_FOR_GOOD NO_VALID_CHECKPOINT"},
      {"no progress in a row", crashed,
       [](Situation* x) { x->job.set_generations_without_progress(2); }, "GAVE_UP NO_PROGRESS"},
  });
}

TEST(NextAction, AScheduledRestartWaitsForItsDelayAndItsMachines) {
  Situation s = In(Job::STATE_RESTARTING);
  s.job.set_restart_decided(true);
  s.job.set_restart_delay_seconds(8);
  s.waited = absl::Seconds(9);
  Check({
      {"due", s, {}, "check"},
      {"not due", s, [](Situation* x) { x->waited = absl::Seconds(7); }, "wait"},
      {"a check runs", s, [](Situation* x) { x->checking = true; }, "wait"},
      {"a machine is lost", s, [](Situation* x) { x->ranks[0].node = RankView::Node::kLost; },
       "NODE_GONE"},
      {"a machine is unknown", s, [](Situation* x) { x->ranks[0].node = RankView::Node::kUnknown; },
       "wait"},
      {"patience for the measurement begins after the delay", s,
       [](Situation* x) {
         x->ranks[0].measured_since_told = false;
         x->waited = absl::Seconds(37);
       },
       "wait"},
  });
}

TEST(NextAction, AJobThatLosesItsAllocationIsQueuedForAnother) {
  Situation s = In(Job::STATE_RESTARTING);
  s.job.set_restart_decided(true);
  s.job.set_restart_delay_seconds(8);
  Job& job = *s.job.mutable_job();
  job.mutable_spec()->mutable_resources()->set_provisioner("slurm");
  job.mutable_allocation()->set_state(v1::Allocation::STATE_RUNNING);
  Situation preflight = s;
  preflight.job.mutable_job()->set_state(Job::STATE_PREFLIGHT);
  const auto over = [](Situation* x) {
    x->job.mutable_job()->mutable_allocation()->set_state(v1::Allocation::STATE_ENDING);
  };
  Check({
      {"a rank crashed: it starts again there", s, {}, "wait"},
      {"the allocation is over", s, over, "NODE_GONE"},
      {"Slurm stopped the workers, and says soon why", s,
       [](Situation* x) { x->job.mutable_job()->set_reason("PREEMPTED"); }, "wait"},
      {"it does not say why", s,
       [](Situation* x) {
         x->job.mutable_job()->set_reason("PREEMPTED");
         x->waited = absl::Seconds(60);
       },
       "NODE_GONE"},
      {"they were stopped because the allocation ends", s,
       [](Situation* x) {
         x->job.mutable_job()->set_reason("PREEMPTED");
         x->job.mutable_job()->mutable_allocation()->set_end_unix_nanos(
             absl::ToUnixNanos(x->Facts().wall_time));
       },
       "NODE_GONE"},
      {"the allocation is over before the start", preflight, over, "NODE_GONE"},
  });
}

TEST(NextAction, AJobWhoseAllocationWasCancelledEndsWithThatReason) {
  Situation stopping = In(Job::STATE_STOPPING);
  Stop(&stopping, v1::STOP_MODE_GRACEFUL);
  stopping.job.mutable_job()->set_reason("ALLOCATION_CANCELLED");
  Situation lost = stopping;
  for (RankView& rank : lost.ranks) rank.node = RankView::Node::kLost;
  Check({
      {"it still runs", stopping, {}, "wait"},
      {"its machines are lost", lost, {}, "GANG_STOPPED ALLOCATION_CANCELLED"},
      {"between two starts", stopping, [](Situation* x) { x->job.set_restart_decided(true); },
       "GANG_STOPPED ALLOCATION_CANCELLED"},
      {"it did all its steps", Ended(Job::STATE_STOPPING, v1::OUTCOME_COMPLETED, 20),
       [](Situation* x) { x->job.mutable_job()->set_reason("ALLOCATION_CANCELLED"); },
       "GANG_COMPLETED"},
  });
}

TEST(NextAction, AGangThatWasAskedToStop) {
  Situation running = In(Job::STATE_STOPPING);
  Stop(&running, v1::STOP_MODE_GRACEFUL);
  Situation crashed = running;
  Crash(&crashed);
  Check({
      {"it still runs", running, {}, "wait"},
      {"between two starts", running, [](Situation* x) { x->job.set_restart_decided(true); },
       "GANG_STOPPED"},
      {"it stands still longer than the grace", running,
       [](Situation* x) {
         x->waited = absl::Seconds(60);
         x->ranks[1].worker->set_seconds_since_progress(60);
       },
       "STOP_NOW STOP_GRACE_EXCEEDED"},
      {"it makes progress", running, [](Situation* x) { x->waited = absl::Seconds(599); }, "wait"},
      {"but not for ever", running, [](Situation* x) { x->waited = absl::Seconds(600); },
       "STOP_NOW STOP_GRACE_EXCEEDED"},
      {"one rank crashed, the other runs", running,
       [](Situation* x) {
         x->ranks[1].worker->set_state(v1::WorkerObservation::STATE_EXITED);
         x->ranks[1].worker->set_exit_signal(SIGSEGV);
       },
       "RANK_LOST RANK_CRASHED"},
      {"the agents end it already", crashed,
       [](Situation* x) {
         x->ranks[0] = Rank(0, v1::WorkerObservation::STATE_RUNNING);
         x->job.set_gang_ending(true);
       },
       "wait"},
      {"every rank crashed", crashed, {}, "GANG_STOPPED"},
      {"killed at once", crashed, [](Situation* x) { Stop(x, v1::STOP_MODE_NOW); }, "GANG_STOPPED"},
      {"it did all its steps",
       Ended(Job::STATE_STOPPING, v1::OUTCOME_COMPLETED, 20),
       {},
       "GANG_COMPLETED"},
  });
}

TEST(NextAction, ACrashWhileStoppingSaysThatTheLastCheckpointIsMissing) {
  Situation crashed = In(Job::STATE_STOPPING);
  Stop(&crashed, v1::STOP_MODE_GRACEFUL);
  Crash(&crashed);
  const Action action = Next(crashed.Facts());
  EXPECT_THAT(std::get<action::Move>(action).cause.text,
              HasSubstr("stopped without a final checkpoint"));
  Stop(&crashed, v1::STOP_MODE_NOW);
  EXPECT_EQ(std::get<action::Move>(Next(crashed.Facts())).cause.text, "ended at once");
}

TEST(NextAction, AfterACheckItStartsWaitsOrFails) {
  const LaunchCheck accepted = {.accepted = true, .nodes = "a, b"};
  const LaunchCheck disk_full = {.problem = "disk", .passing = true};
  const LaunchCheck too_small = {.problem = "GPU"};
  const auto after = [](const Situation& s, const LaunchCheck& check) {
    return Describe(AfterCheck(s.Facts(), check));
  };
  const Situation first = In(Job::STATE_PREFLIGHT);
  EXPECT_EQ(after(first, accepted), "PREFLIGHT_PASSED");
  EXPECT_EQ(after(first, disk_full), "postpone PREFLIGHT_REFUSED by 16s");
  EXPECT_EQ(after(first, too_small), "PREFLIGHT_REFUSED");
  const Situation again = In(Job::STATE_RESTARTING);
  EXPECT_EQ(after(again, accepted), "RESTART_DUE");
  EXPECT_EQ(after(again, disk_full), "restart PREFLIGHT_REFUSED in 16s");
  EXPECT_EQ(after(again, too_small), "restart PREFLIGHT_REFUSED in 16s");

  Situation refused_all_day = first;
  refused_all_day.refusals = {.count = 40, .since = first.Facts().now - kLongestRefusal};
  EXPECT_EQ(after(refused_all_day, disk_full), "PREFLIGHT_REFUSED PREFLIGHT_REFUSED");
  const Action launch = AfterCheck(first.Facts(), accepted);
  EXPECT_EQ(std::get<action::Move>(launch).cause.text, "generation 4 on a, b");
}

}  // namespace
}  // namespace nsa::server
