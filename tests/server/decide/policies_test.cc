// Tests of the pure policies: gang verdict, restart, hang.
#include <csignal>

#include "common/run/rank_address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/decide/gang.h"
#include "server/decide/hang_policy.h"
#include "server/decide/restart_policy.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = GangVerdict::Kind;

RankView Rank(int32_t rank, v1::WorkerObservation::State state) {
  RankView view{.rank = rank,
                .node = RankView::Node::kReady,
                .node_name = "a",
                .heard_since_told = true,
                .seen_before = true};
  view.worker.emplace();
  view.worker->set_state(state);
  view.worker->set_step(7);
  return view;
}

RankView Running(int32_t rank) { return Rank(rank, v1::WorkerObservation::STATE_RUNNING); }

RankView Ended(int32_t rank, v1::Outcome outcome, const std::string& reason, int64_t when = 1) {
  RankView view = Rank(rank, v1::WorkerObservation::STATE_EXITED);
  view.finished.emplace();
  view.finished->set_outcome(outcome);
  view.finished->set_reason(reason);
  view.ended_unix_nanos = when;
  return view;
}

RankView Killed(int32_t rank, int signal, bool by_agent, int64_t when = 1) {
  RankView view = Rank(rank, v1::WorkerObservation::STATE_EXITED);
  view.worker->set_exit_code(-1);
  view.worker->set_exit_signal(signal);
  view.worker->set_killed_by_agent(by_agent);
  view.ended_unix_nanos = when;
  return view;
}

RankView Silent(int32_t rank, RankView::Node node) {
  return {.rank = rank, .node = node, .node_name = "b"};
}

TEST(Gang, RunsWhenEveryRankIsUp) {
  EXPECT_EQ(Judge({Running(0), Running(1)}).kind, Kind::kRunning);
  EXPECT_EQ(Judge({Running(0), Rank(1, v1::WorkerObservation::STATE_STARTING)}).kind,
            Kind::kStarting);
}

TEST(Gang, AMissingHeartbeatIsUnknownAndNotFailed) {
  const GangVerdict verdict = Judge({Running(0), Silent(1, RankView::Node::kUnknown)});
  EXPECT_EQ(verdict.kind, Kind::kUnknown);
  EXPECT_FALSE(verdict.gone);
}

TEST(Gang, ALostNodeIsAFaultOfTheMachine) {
  const GangVerdict verdict = Judge({Running(0), Silent(1, RankView::Node::kLost)});
  ASSERT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_EQ(verdict.failure->reason, "NODE_LOST");
  EXPECT_TRUE(verdict.failure->infrastructure);
  EXPECT_FALSE(verdict.gone) << "rank 0 is still there";
}

TEST(Gang, AStartThatCanNeverSucceedIsNotRepeated) {
  RankView rank = Rank(0, v1::WorkerObservation::STATE_EXITED);
  rank.worker->set_exit_code(-1);
  rank.worker->set_start_error("spawn: /bin/worker: not there");
  EXPECT_FALSE(Judge({rank}).failure->final);
  rank.worker->set_start_error("unix_user: bob is not on this machine");
  rank.worker->set_exit_code(3);
  const GangVerdict verdict = Judge({rank});
  EXPECT_EQ(verdict.failure->reason, "START_FAILED");
  EXPECT_TRUE(verdict.failure->final);
  EXPECT_THAT(verdict.failure->text, HasSubstr("bob is not on this machine"));
}

TEST(Gang, ARankThatEndedUnseenHasNoExitCode) {
  RankView rank = Rank(0, v1::WorkerObservation::STATE_EXITED);
  rank.worker->set_exit_code(-1);
  const GangVerdict unseen = Judge({rank});
  EXPECT_EQ(unseen.failure->reason, "RANK_EXITED");
  EXPECT_THAT(unseen.failure->text, HasSubstr("while no agent was there to see how"));
  rank.worker->set_exit_code(9);
  EXPECT_THAT(Judge({rank}).failure->text, HasSubstr("exited with code 9"));
}

// The agent was told to end the gang because of rank 0 before it saw that rank 1 had crashed.
TEST(Gang, ACrashIsTheCauseEvenIfTheAgentMeantToKillTheRank) {
  const GangVerdict verdict =
      Judge({Ended(0, v1::OUTCOME_FAILED, "PEER_LOST", 10), Killed(1, SIGSEGV, true, 20)});
  EXPECT_EQ(verdict.failure->reason, "RANK_CRASHED");
  EXPECT_EQ(verdict.failure->rank, 1);
  EXPECT_EQ(Judge({Killed(0, SIGKILL, true)}).failure->reason, "KILLED");
}

TEST(Gang, ARankForWhichMemoryRanOutSaysSoAndAtWhichLimit) {
  RankView rank = Killed(0, SIGKILL, false);
  EXPECT_EQ(Judge({rank}).failure->reason, "RANK_KILLED");
  rank.worker->set_out_of_memory("2.00 GiB (/sys/fs/cgroup/nsa/memory.max)");
  rank.worker->set_step(12);
  const GangVerdict verdict = Judge({rank});
  EXPECT_EQ(verdict.failure->reason, "OUT_OF_MEMORY");
  EXPECT_THAT(verdict.failure->text, HasSubstr("at step 12: host memory ran out"));
  EXPECT_FALSE(verdict.failure->infrastructure) << "it counts as a restart";
  EXPECT_FALSE(verdict.failure->final);
  // The agent was told to end the gang before it saw that.
  rank.worker->set_killed_by_agent(true);
  EXPECT_EQ(Judge({rank}).failure->reason, "OUT_OF_MEMORY");
  // The system refused an allocation, and the rank ended by itself.
  rank.worker->set_killed_by_agent(false);
  rank.worker->set_exit_signal(0);
  rank.worker->set_exit_code(4);
  EXPECT_EQ(Judge({rank}).failure->reason, "OUT_OF_MEMORY");
  EXPECT_THAT(Judge({rank}).failure->text, HasSubstr("ended at step 12: host memory ran out"));
}

TEST(Gang, TheFirstRankThatDiedOnItsOwnIsTheCause) {
  // Rank 0 reported first that it lost a peer, rank 2 was killed by its agent, and rank 1 crashed.
  const GangVerdict verdict = Judge({Ended(0, v1::OUTCOME_FAILED, "PEER_LOST", 10),
                                     Killed(1, SIGSEGV, false, 30), Killed(2, SIGKILL, true, 5)});
  ASSERT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_EQ(verdict.failure->rank, 1);
  EXPECT_EQ(verdict.failure->reason, "RANK_CRASHED");
  EXPECT_THAT(verdict.failure->text, HasSubstr("signal 11"));
  EXPECT_FALSE(verdict.failure->infrastructure);
  EXPECT_TRUE(verdict.gone);
}

TEST(Gang, OfTwoThatDiedOnTheirOwnTheEarlierIsTheCause) {
  const GangVerdict verdict = Judge({Ended(0, v1::OUTCOME_FAILED, "DATA_STALLED", 20),
                                     Ended(1, v1::OUTCOME_FAILED, "OUT_OF_MEMORY", 10)});
  EXPECT_EQ(verdict.failure->reason, "OUT_OF_MEMORY");
}

TEST(Gang, AWorkerThatEndedWithItsMachineIsAFaultOfTheMachine) {
  RankView rank = Running(1);
  rank.worker->set_state(v1::WorkerObservation::STATE_EXITED);
  rank.worker->set_exit_code(-1);
  rank.worker->set_machine_restarted(true);
  const GangVerdict verdict = Judge({Running(0), rank});
  ASSERT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_EQ(verdict.failure->reason, "NODE_RESTARTED");
  EXPECT_TRUE(verdict.failure->infrastructure) << "does not count against max_restarts";
  EXPECT_FALSE(verdict.failure->final);
}

TEST(Gang, PeerLostAloneIsAFaultOfTheMachine) {
  const GangVerdict verdict = Judge({Ended(0, v1::OUTCOME_FAILED, "PEER_LOST"), Running(1)});
  EXPECT_EQ(verdict.failure->reason, "PEER_LOST");
  EXPECT_TRUE(verdict.failure->infrastructure);
}

TEST(Gang, LastWordsAndExitCodesSayWhetherARestartHelps) {
  EXPECT_TRUE(Judge({Ended(0, v1::OUTCOME_FAILED_FINAL, "NO_VALID_CHECKPOINT")}).failure->final);
  EXPECT_FALSE(Judge({Ended(0, v1::OUTCOME_FAILED, "DATA_STALLED")}).failure->final);
  for (const auto& [code, final] : {std::pair(1, false), {2, true}, {3, true}, {139, false}}) {
    RankView rank = Rank(0, v1::WorkerObservation::STATE_EXITED);
    rank.worker->set_exit_code(code);
    EXPECT_EQ(Judge({rank}).failure->final, final) << code;
  }
}

TEST(Gang, EndsWellOnlyWhenEveryRankDoes) {
  EXPECT_EQ(Judge({Ended(0, v1::OUTCOME_COMPLETED, "COMPLETED"), Running(1)}).kind, Kind::kRunning);
  EXPECT_EQ(Judge({Ended(0, v1::OUTCOME_COMPLETED, ""), Ended(1, v1::OUTCOME_COMPLETED, "")}).kind,
            Kind::kCompleted);
  EXPECT_EQ(Judge({Ended(0, v1::OUTCOME_STOPPED, ""), Ended(1, v1::OUTCOME_STOPPED, "")}).kind,
            Kind::kStopped);
  EXPECT_EQ(Judge({Ended(0, v1::OUTCOME_COMPLETED, ""), Killed(1, SIGKILL, false)}).kind,
            Kind::kFailed);
}

TEST(Gang, AWorkerThatItsAgentForgotHasVanished) {
  RankView rank = Running(0);
  rank.worker.reset();
  const GangVerdict verdict = Judge({rank});
  ASSERT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_EQ(verdict.failure->reason, "WORKER_VANISHED");
  rank.heard_since_told = false;
  EXPECT_NE(Judge({rank}).kind, Kind::kFailed) << "an old heartbeat does not count";
}

v1::RestartSpec Policy() {
  v1::RestartSpec policy;
  policy.set_max_restarts(5);
  policy.set_backoff_seconds(15);
  policy.set_max_no_progress(3);
  return policy;
}

const absl::Time kPolicyNow = absl::FromUnixSeconds(1'000'000);
const Failure kCrash = {.reason = "RANK_CRASHED", .text = "rank 0", .rank = 0};

TEST(RestartPolicy, DoublesTheDelayUpToFiveMinutesWithJitter) {
  v1::RestartSpec policy = Policy();
  policy.set_max_no_progress(100);
  policy.set_max_restarts(100);
  const double expected[] = {15, 30, 60, 120, 240, 300, 300};
  for (int i = 0; i < 7; ++i) {
    const RestartHistory history{.without_progress = i};
    for (const double jitter : {0.0, 0.5, 0.999}) {
      const RestartDecision decision = DecideRestart(policy, history, kCrash, kPolicyNow, jitter);
      ASSERT_TRUE(decision.restart);
      EXPECT_NEAR(absl::ToDoubleSeconds(decision.delay), expected[i] * (0.75 + 0.5 * jitter), 1e-6);
    }
  }
}

TEST(RestartPolicy, ProgressStartsTheDelayAgain) {
  const RestartDecision decision = DecideRestart(
      Policy(), {.without_progress = 2, .made_progress = true}, kCrash, kPolicyNow, 0.5);
  ASSERT_TRUE(decision.restart);
  EXPECT_EQ(decision.delay, absl::Seconds(15));
  EXPECT_EQ(decision.without_progress, 0);
}

TEST(RestartPolicy, GivesUpWhenTheBudgetOfADayIsSpent) {
  RestartHistory history{.made_progress = true};
  for (int i = 0; i < 4; ++i) history.counted.push_back(kPolicyNow - absl::Hours(1));
  EXPECT_TRUE(DecideRestart(Policy(), history, kCrash, kPolicyNow, 0).restart);
  history.counted.push_back(kPolicyNow - absl::Hours(23));
  const RestartDecision decision = DecideRestart(Policy(), history, kCrash, kPolicyNow, 0);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.reason, "RESTART_BUDGET_EXHAUSTED");
  history.counted.back() = kPolicyNow - absl::Hours(25);
  EXPECT_TRUE(DecideRestart(Policy(), history, kCrash, kPolicyNow, 0).restart)
      << "yesterday is over";
}

TEST(RestartPolicy, FaultsOfTheMachineDoNotCount) {
  RestartHistory history{.made_progress = true};
  for (int i = 0; i < 9; ++i) history.counted.push_back(kPolicyNow);
  Failure lost = kCrash;
  lost.infrastructure = true;
  const RestartDecision decision = DecideRestart(Policy(), history, lost, kPolicyNow, 0);
  EXPECT_TRUE(decision.restart);
  EXPECT_FALSE(decision.counts);
}

TEST(RestartPolicy, BreaksALoopThatMakesNoProgressWhateverTheCause) {
  Failure lost = kCrash;
  lost.infrastructure = true;
  EXPECT_TRUE(DecideRestart(Policy(), {.without_progress = 1}, lost, kPolicyNow, 0).restart);
  const RestartDecision decision =
      DecideRestart(Policy(), {.without_progress = 2}, lost, kPolicyNow, 0);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.reason, "NO_PROGRESS");
  EXPECT_THAT(decision.text, HasSubstr("rank 0"));
}

TEST(RestartPolicy, StartsThatWereCutShortCountOneForFour) {
  const Failure killed = {.reason = "RANK_KILLED", .text = "rank 0 was killed"};
  Failure lost = kCrash;
  lost.infrastructure = true;
  for (const Failure& from_outside : {killed, lost}) {
    RestartHistory history{.before_checkpoint = true};
    int starts = 0;
    while (true) {
      const RestartDecision decision =
          DecideRestart(Policy(), history, from_outside, kPolicyNow, 0);
      ++starts;
      if (!decision.restart) {
        EXPECT_EQ(decision.reason, "NO_PROGRESS");
        EXPECT_THAT(decision.text,
                    HasSubstr("12 starts in a row without a newer checkpoint; 12 were ended "
                              "from outside before one was due"));
        break;
      }
      EXPECT_EQ(decision.without_progress, 0);
      history.without_progress = decision.without_progress;
      history.cut_short = decision.cut_short;
    }
    EXPECT_EQ(starts, 12);
  }
  const RestartHistory early{.without_progress = 2, .cut_short = 3, .before_checkpoint = true};
  EXPECT_FALSE(DecideRestart(Policy(), early, kCrash, kPolicyNow, 0).restart)
      << "a crash counts, however early";
  EXPECT_FALSE(DecideRestart(Policy(), early, killed, kPolicyNow, 0).restart) << "the fourth";
  const RestartHistory late{.without_progress = 2};
  EXPECT_FALSE(DecideRestart(Policy(), late, killed, kPolicyNow, 0).restart)
      << "it did no step, or reached the step of a checkpoint that it did not save";
  const RestartDecision progress =
      DecideRestart(Policy(), {.without_progress = 2, .cut_short = 3, .made_progress = true},
                    killed, kPolicyNow, 0);
  EXPECT_EQ(progress.without_progress, 0);
  EXPECT_EQ(progress.cut_short, 0);
}

TEST(RestartPolicy, ARefusedStartWaitsEverLongerAndCountsForNothing) {
  const Failure refused{.reason = "PREFLIGHT_REFUSED", .text = "the disk is full", .refused = true};
  RestartHistory history{.counted = std::vector<absl::Time>(9, kPolicyNow), .without_progress = 2};
  const double expected[] = {60, 120, 240, 300, 300};
  for (int i = 0; i < 5; ++i) {
    history.refusals = i;
    history.refused_for = absl::Minutes(5) * i;
    history.made_progress = i % 2 == 0;
    const RestartDecision decision = DecideRestart(Policy(), history, refused, kPolicyNow, 0.5);
    ASSERT_TRUE(decision.restart) << decision.text;
    EXPECT_EQ(absl::ToDoubleSeconds(decision.delay), expected[i]);
    EXPECT_FALSE(decision.counts);
    EXPECT_EQ(decision.without_progress, 2);
  }
  history.refused_for = absl::Hours(24);
  const RestartDecision decision = DecideRestart(Policy(), history, refused, kPolicyNow, 0.5);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.reason, "PREFLIGHT_REFUSED");
  EXPECT_THAT(decision.text, StartsWith("the disk is full (refused 5 times"));
}

TEST(Gang, AStartWithoutTheJobsCheckpointsOrIntoABusyFolderWasRefused) {
  const auto failure = Judge({Ended(0, v1::OUTCOME_FAILED, "CHECKPOINTS_MISSING")}).failure;
  EXPECT_TRUE(failure->refused);
  EXPECT_TRUE(Judge({Ended(0, v1::OUTCOME_FAILED, "OUT_DIR_BUSY")}).failure->refused);
  EXPECT_TRUE(Judge({Ended(0, v1::OUTCOME_FAILED, "OUT_DIR_BUSY"),
                     Ended(1, v1::OUTCOME_FAILED, "PEER_LOST")})
                  .failure->refused);
  EXPECT_FALSE(failure->final);
  EXPECT_FALSE(Judge({Ended(0, v1::OUTCOME_FAILED, "CHECKPOINT_FAILED")}).failure->refused);
}

TEST(RestartPolicy, ARefusedStartIsNotLookedAtEveryMoment) {
  v1::RestartSpec policy = Policy();
  policy.set_backoff_seconds(0);
  const Failure refused{.reason = "PREFLIGHT_REFUSED", .refused = true};
  EXPECT_GT(DecideRestart(policy, {}, refused, kPolicyNow, 0).delay, absl::Seconds(1));
}

TEST(RestartPolicy, DoesNotRepeatWhatWouldFailAgain) {
  Failure final = kCrash;
  final.final = true;
  final.reason = "NONFINITE_LOSS";
  const RestartDecision decision = DecideRestart(Policy(), {}, final, kPolicyNow, 0);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.reason, "NONFINITE_LOSS");
}

RankProgress Still(int32_t rank, double seconds, const std::string& phase = "forward") {
  return {.rank = rank,
          .node = "a",
          .heard = true,
          .running = true,
          .step = 100,
          .phase = phase,
          .process_state = "T",
          .since_progress = absl::Seconds(seconds)};
}

const HangLimits kLimits = {
    .step = absl::Seconds(60), .start = absl::Seconds(600), .checkpoint = absl::Seconds(100)};

TEST(HangPolicy, DumpsFirstThenEnds) {
  const absl::Duration now = absl::Seconds(1'000);
  using K = HangDecision::Kind;
  EXPECT_EQ(DecideHang({Still(0, 59)}, kLimits, {}, now).kind, K::kSave);
  const HangDecision first = DecideHang({Still(0, 61), Still(1, 75)}, kLimits, {}, now);
  EXPECT_EQ(first.kind, K::kDump);
  EXPECT_EQ(first.rank, 1) << "the one that has stood still longest";
  EXPECT_THAT(first.text, HasSubstr("no progress for 75 s in forward"));
  RankProgress on_gpu = Still(0, 61);
  on_gpu.place = "forward layer 3 kernel selected_attention";
  EXPECT_THAT(DecideHang({on_gpu}, kLimits, {}, now).text,
              HasSubstr("layer 3 kernel selected_attention"));
  const HangState suspected{.suspected = true, .suspected_since = now};
  EXPECT_EQ(DecideHang({Still(0, 62)}, kLimits, suspected, now + absl::Seconds(1)).kind, K::kWait);
  EXPECT_EQ(DecideHang({Still(0, 70)}, kLimits, suspected, now + kDumpGrace).kind, K::kEnd);
  EXPECT_EQ(DecideHang({Still(0, 1)}, kLimits, suspected, now + kDumpGrace).kind, K::kFine);
}

TEST(HangPolicy, SavesTheStacksLongBeforeTheLimit) {
  using K = HangDecision::Kind;
  const absl::Duration now = absl::Seconds(1'000);
  const auto at = [&](double seconds, double limit, const HangState& state = {}) {
    const HangLimits limits = {.step = absl::Seconds(limit), .start = absl::Seconds(limit)};
    return DecideHang({Still(0, seconds)}, limits, state, now).kind;
  };
  EXPECT_EQ(at(179, 600), K::kFine);
  EXPECT_EQ(at(180, 600), K::kSave);
  EXPECT_EQ(at(29, 60), K::kFine);
  EXPECT_EQ(at(30, 60), K::kSave) << "half of a limit that is shorter";
  EXPECT_EQ(at(60, 60), K::kDump) << "the limit comes first";
  const auto saved = [&](double ago) { return HangState{.saved_at = now - absl::Seconds(ago)}; };
  EXPECT_EQ(at(500, 600, saved(320)), K::kFine) << "saved in this standstill";
  EXPECT_EQ(at(190, 600, saved(200)), K::kSave) << "saved in an earlier one";
  EXPECT_EQ(at(35, 60, saved(100)), K::kFine) << "a short limit does not save again and again";
  EXPECT_EQ(at(35, 60, saved(181)), K::kSave);
}

TEST(HangPolicy, KnowsThePhases) {
  using K = HangDecision::Kind;
  const auto at = [](RankProgress rank) { return DecideHang({rank}, kLimits, {}, {}).kind; };
  EXPECT_EQ(at(Still(0, 179, "waiting_for_peers")), K::kFine);
  EXPECT_EQ(at(Still(0, 599, "waiting_for_peers")), K::kSave);
  EXPECT_EQ(at(Still(0, 601, "loading_checkpoint")), K::kDump);
  const HangLimits slow = {
      .step = kLimits.step, .start = kLimits.start, .checkpoint = absl::Hours(1)};
  EXPECT_NE(DecideHang({Still(0, 3'599, "loading_checkpoint")}, slow, {}, {}).kind, K::kDump)
      << "what took long to write takes long to read";
  EXPECT_EQ(DecideHang({Still(0, 3'601, "loading_checkpoint")}, slow, {}, {}).kind, K::kDump);
  EXPECT_EQ(at(Still(0, 49, "checkpoint")), K::kFine);
  EXPECT_EQ(at(Still(0, 99, "checkpoint")), K::kSave);
  EXPECT_EQ(at(Still(0, 101, "checkpoint")), K::kDump);
  RankProgress warming = Still(0, 120);
  warming.first_step = 96;
  EXPECT_EQ(at(warming), K::kFine) << "the first steps of a generation";
}

TEST(HangPolicy, JudgesNothingThatItHasNotHeard) {
  RankProgress silent = Still(0, 1'000);
  silent.heard = false;
  EXPECT_EQ(DecideHang({silent}, kLimits, {}, {}).kind, HangDecision::Kind::kFine);
  RankProgress ended = Still(0, 1'000);
  ended.running = false;
  EXPECT_EQ(DecideHang({ended}, kLimits, {}, {}).kind, HangDecision::Kind::kFine);
}

// The order of docs/runbook.md, for short timeouts as for long ones.
TEST(HangPolicy, StacksAreSavedThenDumpedThenTheGangEndsThenRanksGiveUp) {
  for (const double seconds : {1.0, 60.0, 600.0, 86400.0}) {
    v1::RestartSpec policy;
    policy.set_hang_timeout_seconds(seconds);
    const HangLimits limits = LimitsOf(policy, absl::ZeroDuration());
    const absl::Duration peers_give_up = PeerTimeout(absl::Seconds(seconds));
    std::vector<RankProgress> ranks = {
        {.node = "a", .heard = true, .running = true, .step = 50, .phase = "forward"}};
    HangState state;
    std::vector<std::pair<HangDecision::Kind, absl::Duration>> seen;
    const absl::Duration tick = absl::Milliseconds(200);  // that of the coordinator
    for (absl::Duration now; now < peers_give_up; now += tick) {
      ranks[0].since_progress = now;
      const HangDecision::Kind kind = DecideHang(ranks, limits, state, now).kind;
      if (kind == HangDecision::Kind::kSave) state.saved_at = now;
      if (kind == HangDecision::Kind::kDump) {
        state.suspected = true;
        state.suspected_since = now;
      }
      const bool same = !seen.empty() && seen.back().first == kind;
      if (kind != HangDecision::Kind::kFine && !same) seen.emplace_back(kind, now);
    }
    using HangKind = HangDecision::Kind;
    ASSERT_EQ(seen.size(), 4u) << seconds;
    EXPECT_EQ(seen[0].first, HangKind::kSave);
    EXPECT_LE(seen[0].second, limits.step / 2 + tick);
    EXPECT_EQ(seen[1].first, HangKind::kDump);
    EXPECT_EQ(seen[2].first, HangKind::kWait);
    EXPECT_EQ(seen[3].first, HangKind::kEnd);
    // A dump may be asked for until a second before the end.
    EXPECT_GE(seen[3].second - seen[1].second, kDumpGrace);
    EXPECT_LT(seen[3].second + absl::Seconds(2), peers_give_up);
  }
}

TEST(HangPolicy, GivesACheckpointFiveTimesTheLastOne) {
  v1::RestartSpec policy;
  policy.set_hang_timeout_seconds(60);
  EXPECT_EQ(LimitsOf(policy, absl::Seconds(40)).checkpoint, absl::Seconds(200));
  EXPECT_EQ(LimitsOf(policy, absl::Seconds(1)).checkpoint, absl::Seconds(60));
  EXPECT_EQ(LimitsOf(policy, {}).start, absl::Seconds(600));
}

}  // namespace
}  // namespace nsa::server
