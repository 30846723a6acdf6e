// Cordons and drains: which job has to leave its machines, and what happens to it.
#include "server/decide/rule/cordon.h"

#include "common/rpc/cordon_text.h"
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

const absl::Time kCordonNow = absl::FromUnixSeconds(1'000);

v1::NodeCordon Cordon(bool drain, int64_t deadline_seconds = 0) {
  v1::NodeCordon cordon;
  cordon.set_by("alice");
  cordon.set_reason("new kernel");
  cordon.set_drain(drain);
  cordon.set_deadline_unix_nanos(deadline_seconds * 1'000'000'000);
  return cordon;
}

v1::StoredJob OnMachines(std::initializer_list<const char*> nodes) {
  v1::StoredJob job;
  for (const char* node : nodes) job.add_placements()->set_node(node);
  return job;
}

TEST(Leave, FollowsTheStrongestDemandOfItsMachines) {
  const Cordons cordons = {{"b", Cordon(false)},
                           {"c", Cordon(true)},
                           {"d", Cordon(true, 1'000)},
                           {"e", Cordon(true, 1'001)}};
  const auto kind = [&](std::initializer_list<const char*> nodes) {
    return LeaveOf(OnMachines(nodes), cordons, kCordonNow).kind;
  };
  EXPECT_EQ(kind({}), Leave::Kind::kStay);
  EXPECT_EQ(kind({"a"}), Leave::Kind::kStay);
  EXPECT_EQ(kind({"a", "b"}), Leave::Kind::kNoStart);
  EXPECT_EQ(kind({"c", "b"}), Leave::Kind::kMove);
  EXPECT_EQ(kind({"e"}), Leave::Kind::kMove) << "its deadline is a second away";
  EXPECT_EQ(kind({"c", "d", "b"}), Leave::Kind::kMoveNow);
  EXPECT_EQ(LeaveOf(OnMachines({"b", "c"}), cordons, kCordonNow).why,
            "c is drained by alice (new kernel)");
}

TEST(CordonText, NamesWhoAndWhyAsFarAsTheyAreKnown) {
  EXPECT_EQ(CordonText(Cordon(false)), "cordoned by alice (new kernel)");
  EXPECT_EQ(CordonText({}), "cordoned");
  v1::Node node;
  EXPECT_EQ(CordonWord(node), "");
  *node.mutable_cordon() = Cordon(false);
  EXPECT_EQ(CordonWord(node), "CORDONED");
  *node.mutable_cordon() = Cordon(true);
  EXPECT_EQ(CordonWord(node), "DRAINED");
  node.set_gpus_used(1);
  EXPECT_EQ(CordonWord(node), "DRAINING") << "also where the jobs themselves are not shown";
}

Situation With(Situation s, Leave::Kind kind) {
  s.leave = {.kind = kind, .why = "a is drained by alice"};
  return s;
}

std::string TextOf(const Situation& s) {
  return std::get<action::Move>(Next(s.Facts())).cause.text;
}

TEST(Drain, AsksRanksToEndAndACordonDoesNot) {
  for (const Job::State state : {Job::STATE_STARTING, Job::STATE_RUNNING}) {
    const Situation s =
        In(state, state == Job::STATE_STARTING ? v1::WorkerObservation::STATE_STARTING
                                               : v1::WorkerObservation::STATE_RUNNING);
    Check({{"not cordoned", s, {}, "wait"},
           {"cordoned", With(s, Leave::Kind::kNoStart), {}, "wait"},
           {"drained", With(s, Leave::Kind::kMove), {}, "MOVE"},
           {"the deadline has passed", With(s, Leave::Kind::kMoveNow), {}, "MOVE_NOW"}});
  }
}

TEST(Drain, AStartOnACordonedMachineDoesNotHappen) {
  Situation decided = In(Job::STATE_RESTARTING);
  decided.job.set_restart_decided(true);
  decided.job.set_restart_delay_seconds(8);
  const Situation placed = In(Job::STATE_PREFLIGHT);
  for (const auto kind : {Leave::Kind::kNoStart, Leave::Kind::kMove, Leave::Kind::kMoveNow}) {
    Check({{"placed", With(placed, kind), {}, "MOVED"},
           {"a check runs", With(placed, kind), [](Situation* x) { x->checking = true; }, "wait"},
           {"waits for its restart", With(decided, kind), {}, "MOVED"}});
    const LaunchCheck accepted = {.accepted = true, .nodes = "a"};
    EXPECT_EQ(Describe(AfterCheck(With(placed, kind).Facts(), accepted)), "MOVED");
    EXPECT_EQ(Describe(AfterCheck(With(decided, kind).Facts(), accepted)), "MOVED");
    EXPECT_EQ(Describe(AfterCheck(With(placed, kind).Facts(), {.problem = "GPU"})),
              "PREFLIGHT_REFUSED");
  }
}

TEST(Drain, RanksThatEndWellAreMoved) {
  const Situation ending = With(In(Job::STATE_RESTARTING), Leave::Kind::kMove);
  const Situation ended =
      With(Ended(Job::STATE_RESTARTING, v1::OUTCOME_STOPPED, 7), Leave::Kind::kMove);
  const Situation done =
      With(Ended(Job::STATE_RESTARTING, v1::OUTCOME_COMPLETED, 20), Leave::Kind::kMove);
  Check({
      {"they still run", ending, {}, "wait"},
      {"one has ended", ending,
       [](Situation* x) {
         x->ranks[0] = Ended(Job::STATE_RUNNING, v1::OUTCOME_STOPPED, 7).ranks[0];
       },
       "wait"},
      {"all have ended", ended, {}, "MOVED"},
      {"uncordoned meanwhile", ended, [](Situation* x) { x->leave = {}; }, "MOVED"},
      {"that was the last step", done, {}, "GANG_COMPLETED"},
      {"a stop at this step was in force", ended,
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 7); }, "GANG_STOPPED"},
      {"a stop at a later step stays in force", ended,
       [](Situation* x) { Stop(x, v1::STOP_MODE_AT_STEP, 8); }, "MOVED"},
  });
  EXPECT_THAT(TextOf(ended), AllOf(HasSubstr("at step 7"), HasSubstr("a is drained by alice"),
                                   HasSubstr("queued for another machine")));
}

TEST(Drain, AFailureOrAHangMeanwhileIsOne) {
  const Situation ending = With(In(Job::STATE_RESTARTING), Leave::Kind::kMove);
  Situation stuck = ending;
  for (RankView& rank : stuck.ranks) rank.worker->set_seconds_since_progress(40);
  Check({
      {"a rank crashed", ending, [](Situation* x) { Crash(x); }, "RANK_LOST RANK_CRASHED"},
      {"a machine is lost", ending, [](Situation* x) { x->ranks[0].node = RankView::Node::kLost; },
       "RANK_LOST NODE_LOST"},
      {"no progress", stuck, {}, "dump"},
  });
}

TEST(Drain, AfterTheDeadlineRanksAreKilledAndTheJobIsMoved) {
  const Situation ending = With(In(Job::STATE_RESTARTING), Leave::Kind::kMoveNow);
  Situation killed = ending;
  killed.job.set_gang_ending(true);
  killed.job.mutable_job()->set_reason("MOVING");
  Situation gone = killed;
  for (RankView& rank : gone.ranks) {
    rank.worker->set_state(v1::WorkerObservation::STATE_EXITED);
    rank.worker->set_exit_signal(SIGKILL);
    rank.worker->set_killed_by_agent(true);
  }
  Check({
      {"they still run", ending, {}, "MOVE_NOW"},
      {"they are being killed", killed, {}, "wait"},
      {"they are gone", gone, {}, "MOVED"},
      {"a rank had crashed by itself: moved all the same", killed, [](Situation* x) { Crash(x); },
       "MOVED"},
      {"they had done all their steps",
       With(Ended(Job::STATE_RESTARTING, v1::OUTCOME_COMPLETED, 20), Leave::Kind::kMoveNow),
       [](Situation* x) { x->job.set_gang_ending(true); }, "GANG_COMPLETED"},
  });
}

TEST(Drain, AStopByAUserWins) {
  Situation stopping = With(In(Job::STATE_STOPPING), Leave::Kind::kMove);
  Stop(&stopping, v1::STOP_MODE_GRACEFUL);
  Situation ended = With(Ended(Job::STATE_STOPPING, v1::OUTCOME_STOPPED, 7), Leave::Kind::kMove);
  Stop(&ended, v1::STOP_MODE_GRACEFUL);
  Check({
      {"it still runs", stopping, {}, "wait"},
      {"it has ended", ended, {}, "GANG_STOPPED"},
      {"the deadline holds for it too",
       With(stopping, Leave::Kind::kMoveNow),
       {},
       "STOP_NOW STOP_GRACE_EXCEEDED"},
  });
}

v1::StoredJob RunningOnNode() {
  v1::StoredJob job;
  job.mutable_job()->set_state(Job::STATE_RUNNING);
  job.set_queued_unix_nanos(5);
  job.add_placements()->set_node("a");
  return job;
}

TEST(Move, KeepsItsPlaceInTheQueueAndCountsNoRestart) {
  v1::StoredJob job = RunningOnNode();
  std::vector<v1::JobEvent> events;
  EXPECT_FALSE(IsMoving(job));
  ASSERT_OK(Apply(kMoveAsked, {.text = "why"}, kCordonNow, &job, &events));
  EXPECT_TRUE(IsMoving(job));
  EXPECT_FALSE(job.gang_ending());
  EXPECT_EQ(job.job().reason(), "MOVING");
  ASSERT_OK(Apply(kStopAtStepAsked, {}, kCordonNow, &job, &events));
  EXPECT_EQ(job.job().reason(), "MOVING") << "a stop at a later step does not say why it moves";
  EXPECT_EQ(events.back().reason(), "STOP_AT_STEP");
  ASSERT_OK(Apply(kMoved, {}, kCordonNow, &job, &events));
  EXPECT_EQ(job.job().state(), Job::STATE_QUEUED);
  EXPECT_EQ(job.job().reason(), "MOVED");
  EXPECT_EQ(job.queued_unix_nanos(), 5);
  EXPECT_EQ(job.placements_size(), 0);
  EXPECT_EQ(job.job().restarts(), 0);
  EXPECT_EQ(job.counted_restart_unix_nanos_size(), 0);
}

TEST(Move, IsOverOnceARankWasLostOrTheRanksAreKilled) {
  std::vector<v1::JobEvent> events;
  v1::StoredJob lost = RunningOnNode();
  ASSERT_OK(Apply(kMoveAsked, {}, kCordonNow, &lost, &events));
  ASSERT_OK(Apply(kRankLost, {.reason = "RANK_CRASHED"}, kCordonNow, &lost, &events));
  EXPECT_FALSE(IsMoving(lost));
  EXPECT_TRUE(lost.gang_ending());
  EXPECT_EQ(lost.job().reason(), "RANK_CRASHED");
  v1::StoredJob late = RunningOnNode();
  ASSERT_OK(Apply(kMoveAsked, {}, kCordonNow, &late, &events));
  ASSERT_OK(Apply(kMoveNowAsked, {}, kCordonNow, &late, &events));
  EXPECT_TRUE(late.gang_ending());
  EXPECT_EQ(late.job().reason(), "MOVING");
}

}  // namespace
}  // namespace nsa::server
