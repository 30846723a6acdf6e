#include "server/decide/next_action.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/utc_text.h"
#include "common/estimate/fewer_ranks.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/queue/start.h"
#include "server/decide/rule/time_limit.h"

namespace nsa::server {
namespace {

using v1::Job;

// When a GPU driver hangs, no new measurement arrives. After this time the last one is used.
constexpr absl::Duration kMeasurePatience = absl::Seconds(30);

// How long a cluster manager may take to say why it stopped the workers of an allocation.
constexpr absl::Duration kClusterPatience = absl::Minutes(1);

bool AnyNodeLost(const std::vector<RankView>& ranks) {
  return std::ranges::any_of(
      ranks, [](const RankView& rank) { return rank.node == RankView::Node::kLost; });
}

bool AllNodesReady(const std::vector<RankView>& ranks) {
  return std::ranges::all_of(
      ranks, [](const RankView& rank) { return rank.node == RankView::Node::kReady; });
}

// Whether free memory was measured after the placement, or after the previous gang was gone:
// earlier, the GPU may still have been in use. `waited`: how long the job has waited for the
// measurement.
bool Measured(const std::vector<RankView>& ranks, absl::Duration waited) {
  return std::ranges::all_of(ranks, &RankView::heard_since_told) &&
         (waited >= kMeasurePatience || std::ranges::all_of(ranks, &RankView::measured_since_told));
}

// The cause that was stored when the gang began to end. Used when no rank failed by itself.
Failure StoredCause(const Job& job) {
  return {.reason = job.reason(),
          .text = job.message(),
          .infrastructure = IsMachineFault(job.reason())};
}

action::Move RankLost(const Failure& failure, v1::Severity severity) {
  return {
      Trigger::kRankLost,
      {.reason = failure.reason, .text = failure.text, .rank = failure.rank, .severity = severity}};
}

// A gang that was asked to stop may finish its step and its checkpoint: up to ten times the grace
// as long as every rank makes progress, else the grace.
bool StopIsOverdue(const JobFacts& facts) {
  const absl::Duration asked = facts.now - facts.told;
  const absl::Duration grace = absl::Seconds(facts.job.job().spec().restart().stop_grace_seconds());
  const auto stuck = [&](const RankView& rank) {
    return rank.worker.has_value() && absl::Seconds(rank.worker->seconds_since_progress()) >= grace;
  };
  return asked >= 10 * grace || (asked >= grace && std::ranges::any_of(facts.ranks, stuck));
}

// Whether the present generation has trained, and the step of its next checkpoint was not reached.
bool BeforeCheckpoint(const JobFacts& facts) {
  const int64_t every = facts.job.job().spec().train().save_every();
  const auto first = std::ranges::find(facts.ranks, 0, &RankView::rank);
  if (every <= 0 || first == facts.ranks.end() || !first->started) return false;
  const int64_t step = facts.job.job().progress().step();
  return step > first->first_step && step < (first->first_step / every + 1) * every;
}

RestartHistory HistoryOf(const JobFacts& facts) {
  RestartHistory history;
  for (const int64_t nanos : facts.job.counted_restart_unix_nanos()) {
    history.counted.push_back(absl::FromUnixNanos(nanos));
  }
  history.without_progress = facts.job.generations_without_progress();
  history.cut_short = facts.job.generations_cut_short();
  history.before_checkpoint = BeforeCheckpoint(facts);
  history.made_progress = ProgressMark(facts.job.job()) > facts.job.progress_mark();
  history.refusals = facts.refusals.count;
  if (facts.refusals.count > 0) history.refused_for = facts.now - facts.refusals.since;
  return history;
}

RestartDecision DecideRestart(const JobFacts& facts, const Failure& failure) {
  return DecideRestart(facts.job.job().spec().restart(), HistoryOf(facts), failure, facts.wall_time,
                       facts.jitter);
}

Action AfterFailure(const JobFacts& facts, const Failure& failure) {
  const RestartDecision decision = DecideRestart(facts, failure);
  if (decision.restart) return action::Restart{failure, decision};
  return action::Move{failure.final ? Trigger::kFailedForGood : Trigger::kGaveUp,
                      {.reason = decision.reason,
                       .text = decision.text,
                       .rank = failure.rank,
                       .severity = v1::SEVERITY_ERROR}};
}

// After a start from the queue was refused for a reason that may go away. The job gives its slots
// back, so that others can run and it can be placed elsewhere. The restart policy sets the delay
// and decides when to give up.
Action Postpone(const JobFacts& facts, const Failure& refusal) {
  const RestartDecision decision = DecideRestart(facts, refusal);
  if (decision.restart) return action::PostponeStart{refusal, decision.delay};
  return action::Move{
      Trigger::kPreflightRefused,
      {.reason = decision.reason, .text = decision.text, .severity = v1::SEVERITY_ERROR}};
}

// Nothing of the job runs, and it gives its slots back: it may not start on one of its machines, or
// gives way to another job.
action::Move LeaveForQueue(const JobFacts& facts, const std::string& text) {
  if (!facts.job.preempted_by().empty()) {
    return {
        Trigger::kMoved,
        {.reason = Word(Reason::kPreempted),
         .text = absl::StrCat(text, text.empty() ? "" : "; ", "gave way to ", facts.gives_way_to,
                              facts.leave.why.empty() ? "" : "; ", facts.leave.why)}};
  }
  return {Trigger::kMoved,
          {.text = absl::StrCat(text, text.empty() ? "" : "; ", facts.leave.why,
                                facts.leave.why.empty() ? "queued for any machine"
                                                        : "; queued for another machine")}};
}

// Why the workers stopped although nobody asked this coordinator for it. `at`: "at step 7".
std::string UnaskedStopText(const JobFacts& facts, const std::string& at) {
  const Job& job = facts.job.job();
  if (EndsSoon(job, facts.wall_time)) {
    return absl::StrCat("its allocation ends at ", UtcText(job.allocation().end_unix_nanos()),
                        ": the workers were asked to save a checkpoint, and stopped ", at);
  }
  return absl::StrCat("the workers were stopped from outside this service ", at);
}

// After every rank has ended as completed or stopped.
Action EndWell(const JobFacts& facts, const GangVerdict& verdict) {
  const v1::WorkerFinished& words = verdict.words;
  const std::string at = absl::StrCat("at step ", words.step());
  // Says where, too.
  const std::string text = words.text().empty() ? at : words.text();
  const bool completed = verdict.kind == GangVerdict::Kind::kCompleted;
  if (completed || ReasonFromWord(words.reason()) == Reason::kDataExhausted) {
    return action::Move{Trigger::kGangCompleted, {.reason = words.reason(), .text = text}};
  }
  const v1::StopRequest& stop = facts.job.job().stop();
  const bool at_step = stop.mode() == v1::STOP_MODE_AT_STEP;
  if (IsMoving(facts.job) && !(at_step && words.step() >= stop.at_step())) {
    return LeaveForQueue(facts, at);
  }
  if (stop.mode() == v1::STOP_MODE_UNSPECIFIED || (at_step && words.step() < stop.at_step())) {
    // The allocation ends, or something other than this coordinator stopped the workers, e.g. a
    // machine that shuts down. A stop at a later step stays in force.
    return action::Move{Trigger::kRankLost,
                        {.reason = Word(Reason::kPreempted),
                         .text = UnaskedStopText(facts, at),
                         .severity = v1::SEVERITY_WARNING}};
  }
  if (at_step && words.step() > stop.at_step()) {
    return action::Move{
        Trigger::kGangStopped,
        {.reason = Word(Reason::kStoppedLate),
         .text = absl::StrCat(text, "; the stop reached the ranks after step ", stop.at_step()),
         .severity = v1::SEVERITY_WARNING}};
  }
  return action::Move{Trigger::kGangStopped, {.reason = words.reason(), .text = text}};
}

Action NextForHang(const JobFacts& facts) {
  std::vector<RankProgress> progress;
  for (const RankView& rank : facts.ranks) {
    if (rank.worker.has_value()) progress.push_back(ProgressOf(rank));
  }
  const HangLimits limits = LimitsOf(facts.job.job().spec().restart(), facts.last_checkpoint);
  const HangDecision decision = DecideHang(progress, limits, facts.hang, facts.now);
  switch (decision.kind) {
    case HangDecision::Kind::kFine:
      if (facts.hang.suspected) return action::EndSuspicion{};
      return action::Wait{};
    case HangDecision::Kind::kSave:
      return action::SaveStacks{decision.text, decision.since_progress};
    case HangDecision::Kind::kDump:
      return action::DumpStacks{decision.text};
    case HangDecision::Kind::kWait:
      return action::Wait{};
    case HangDecision::Kind::kEnd:
      return RankLost({.reason = Word(Reason::kHang), .text = decision.text, .rank = decision.rank},
                      v1::SEVERITY_ERROR);
  }
  return action::Wait{};
}

Action NextInPreflight(const JobFacts& facts) {
  if (facts.checking) return action::Wait{};
  if (AnyNodeLost(facts.ranks) || MachinesAreOver(facts.job.job())) {
    return action::Move{Trigger::kNodeGone, {.text = "a machine of the placement is gone"}};
  }
  if (facts.leave.kind != Leave::Kind::kStay) return LeaveForQueue(facts, "");
  if (!Measured(facts.ranks, facts.now - facts.told)) return action::Wait{};
  return action::CheckLaunch{};
}

action::Move MoveNow(const JobFacts& facts) {
  return {Trigger::kMoveNowAsked,
          {.text = absl::StrCat(facts.leave.why,
                                ", and the deadline has passed: the ranks are killed, and the job "
                                "continues from its last checkpoint"),
           .severity = v1::SEVERITY_WARNING}};
}

// For STARTING and RUNNING.
Action NextWithGang(const JobFacts& facts) {
  const GangVerdict verdict = Judge(facts.ranks);
  using Kind = GangVerdict::Kind;
  if (verdict.kind == Kind::kFailed) return RankLost(*verdict.failure, v1::SEVERITY_ERROR);
  if (verdict.kind == Kind::kCompleted || verdict.kind == Kind::kStopped) {
    return EndWell(facts, verdict);
  }
  if (verdict.kind == Kind::kRunning && facts.job.job().state() == Job::STATE_STARTING) {
    const std::string ranks =
        RanksText(facts.job.job().spec(), static_cast<int64_t>(facts.ranks.size()));
    return action::Move{Trigger::kAllRunning, {.text = absl::StrCat(ranks, " up")}};
  }
  if (TimeIsUp(facts.job, facts.wall_time)) {
    return action::Move{Trigger::kTimeLimitReached, {.text = TimeIsUpText(facts.job.job())}};
  }
  if (facts.leave.kind == Leave::Kind::kMoveNow) return MoveNow(facts);
  if (facts.leave.kind == Leave::Kind::kMove) {
    return action::Move{
        Trigger::kMoveAsked,
        {.text = absl::StrCat(facts.leave.why,
                              ": the ranks end after the step in progress with a checkpoint")}};
  }
  return NextForHang(facts);
}

// For RESTARTING while the old gang is ending and no restart has been decided yet.
Action NextAfterGang(const JobFacts& facts) {
  const GangVerdict verdict = Judge(facts.ranks);
  if (!verdict.gone) return action::Wait{};
  if (verdict.kind == GangVerdict::Kind::kCompleted) return EndWell(facts, verdict);
  if (ReasonFromWord(facts.job.job().reason()) == Reason::kMoving) {
    return LeaveForQueue(facts, "its ranks were killed");
  }
  // A hang or a stop from outside was the cause before the gang was ended. In all other cases the
  // first rank that died may become known only now.
  const Failure stored = StoredCause(facts.job.job());
  const std::optional<Reason> reason = ReasonFromWord(stored.reason);
  const bool known = reason == Reason::kHang || reason == Reason::kPreempted;
  return AfterFailure(facts, known || !verdict.failure.has_value() ? stored : *verdict.failure);
}

// For RESTARTING while the ranks end after the step in progress because a machine is drained or
// another job waits for their slots. A rank that fails or hangs meanwhile is treated as at any
// other time.
Action NextInMove(const JobFacts& facts) {
  const GangVerdict verdict = Judge(facts.ranks);
  using Kind = GangVerdict::Kind;
  if (verdict.kind == Kind::kFailed) return RankLost(*verdict.failure, v1::SEVERITY_ERROR);
  if (verdict.kind == Kind::kCompleted || verdict.kind == Kind::kStopped) {
    return EndWell(facts, verdict);
  }
  if (facts.leave.kind == Leave::Kind::kMoveNow) return MoveNow(facts);
  return NextForHang(facts);
}

// If all workers of an allocation are stopped, by Slurm at a preemption or by a user with scancel,
// the machines go next. The cluster manager then says which it was; there is some time for that.
Action NextWhereMachinesAreTaken(const JobFacts& facts) {
  const bool ends_soon = EndsSoon(facts.job.job(), facts.wall_time);
  if (!ends_soon && facts.now - facts.told < kClusterPatience) return action::Wait{};
  return action::Move{Trigger::kNodeGone, {.text = "its allocation ends; queued for another one"}};
}

Action NextInRestarting(const JobFacts& facts) {
  if (IsMoving(facts.job)) return NextInMove(facts);
  if (!facts.job.restart_decided()) return NextAfterGang(facts);
  if (facts.checking) return action::Wait{};
  if (AnyNodeLost(facts.ranks) || MachinesAreOver(facts.job.job())) {
    return action::Move{Trigger::kNodeGone, {.text = "a machine is gone; queued for another"}};
  }
  // A job whose ranks failed while it gave way does not start again on the slots that it gave up.
  const bool gives_way = !facts.job.preempted_by().empty();
  if (gives_way || facts.leave.kind != Leave::Kind::kStay) return LeaveForQueue(facts, "");
  const bool own_machines = !facts.job.job().spec().resources().provisioner().empty();
  if (own_machines && facts.job.job().reason() == Word(Reason::kPreempted)) {
    return NextWhereMachinesAreTaken(facts);
  }
  const absl::Duration waited = facts.now - facts.told;
  const absl::Duration delay = absl::Seconds(facts.job.restart_delay_seconds());
  if (waited < delay || !AllNodesReady(facts.ranks)) return action::Wait{};
  if (HasFewerRanks(facts.job)) {
    return LeaveForQueue(
        facts,
        absl::StrCat("it had ", RanksText(facts.job.job().spec(), facts.job.placements_size()),
                     "; its next start takes all for which there is room"));
  }
  if (!Measured(facts.ranks, waited - delay)) return action::Wait{};
  return action::CheckLaunch{};
}

Action NextWhileStopping(const JobFacts& facts) {
  const v1::StopMode mode = facts.job.job().stop().mode();
  if (facts.job.restart_decided()) {
    return action::Move{Trigger::kGangStopped, {.text = "stopped while waiting for a restart"}};
  }
  const GangVerdict verdict = Judge(facts.ranks);
  using Kind = GangVerdict::Kind;
  if (verdict.kind == Kind::kCompleted || verdict.kind == Kind::kStopped) {
    return EndWell(facts, verdict);
  }
  const bool failed = verdict.kind == Kind::kFailed;
  if (verdict.gone && failed && mode != v1::STOP_MODE_NOW) {
    return action::Move{
        Trigger::kGangStopped,
        {.text = absl::StrCat("stopped without a final checkpoint: ", verdict.failure->text),
         .severity = v1::SEVERITY_WARNING}};
  }
  if (verdict.gone) return action::Move{Trigger::kGangStopped, {.text = "ended at once"}};
  if (facts.job.gang_ending() || mode == v1::STOP_MODE_NOW) return action::Wait{};
  if (failed) return RankLost(*verdict.failure, v1::SEVERITY_WARNING);
  if (StopIsOverdue(facts)) {
    return action::Move{Trigger::kStopNowAsked,
                        {.reason = Word(Reason::kStopGraceExceeded),
                         .text = "the workers did not end within restart.stop_grace_seconds",
                         .severity = v1::SEVERITY_WARNING}};
  }
  if (facts.leave.kind == Leave::Kind::kMoveNow) {
    return action::Move{
        Trigger::kStopNowAsked,
        {.reason = Word(Reason::kStopGraceExceeded),
         .text = absl::StrCat(facts.leave.why, ", and the deadline has passed before they ended"),
         .severity = v1::SEVERITY_WARNING}};
  }
  return action::Wait{};
}

// A job that stops because its allocation was cancelled ends with that reason.
Action NextInCancelled(const JobFacts& facts) {
  const v1::Job& job = facts.job.job();
  Action next = NextWhileStopping(facts);
  auto* move = std::get_if<action::Move>(&next);
  if (move == nullptr || move->trigger != Trigger::kGangStopped) return next;
  move->cause.reason = job.reason();
  move->cause.severity = v1::SEVERITY_WARNING;
  move->cause.text = job.message();
  return next;
}

// A job that stops at its time limit says so at its end, and what to do.
Action NextInStopping(const JobFacts& facts) {
  Action next = NextWhileStopping(facts);
  const Job& job = facts.job.job();
  auto* move = std::get_if<action::Move>(&next);
  if (move == nullptr || move->trigger != Trigger::kGangStopped ||
      ReasonFromWord(job.reason()) != Reason::kTimeLimit) {
    return next;
  }
  move->cause.reason = Word(Reason::kTimeLimit);
  absl::StrAppend(&move->cause.text, "; ", TimeIsUpText(job));
  return next;
}

}  // namespace

Action Next(const JobFacts& facts) {
  switch (facts.job.job().state()) {
    case Job::STATE_PREFLIGHT:
      return NextInPreflight(facts);
    case Job::STATE_STARTING:
    case Job::STATE_RUNNING:
      return NextWithGang(facts);
    case Job::STATE_RESTARTING:
      return NextInRestarting(facts);
    case Job::STATE_STOPPING:
      return facts.job.job().reason() == Word(Reason::kAllocationCancelled) ? NextInCancelled(facts)
                                                                            : NextInStopping(facts);
    default:
      return action::Wait{};
  }
}

Action AfterCheck(const JobFacts& facts, const LaunchCheck& check) {
  const Job& job = facts.job.job();
  const bool restart = job.state() == Job::STATE_RESTARTING;
  if (check.accepted && facts.leave.kind != Leave::Kind::kStay) return LeaveForQueue(facts, "");
  if (check.accepted) {
    return action::Move{
        restart ? Trigger::kRestartDue : Trigger::kPreflightPassed,
        {.text = absl::StrCat("generation ", job.generation() + 1, " on ", check.nodes,
                              HasFewerRanks(facts.job)
                                  ? ", " + RanksText(job.spec(), facts.job.placements_size())
                                  : "")}};
  }
  const Failure refused = {
      .reason = Word(Reason::kPreflightRefused), .text = check.problem, .refused = true};
  // Perhaps a GPU is taken out: the job may be placed without it.
  if (restart && check.passing && !FewerRanks(job.spec()).empty()) {
    return LeaveForQueue(facts, check.problem);
  }
  if (restart) return AfterFailure(facts, refused);
  if (check.passing) return Postpone(facts, refused);
  return action::Move{Trigger::kPreflightRefused,
                      {.text = check.problem, .severity = v1::SEVERITY_ERROR}};
}

}  // namespace nsa::server
