#include "server/decide/lifecycle.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace nsa::server {
namespace {

using v1::Job;

using enum Trigger;

constexpr Transition kTable[] = {
    {Job::STATE_QUEUED, kPlaced, Job::STATE_PREFLIGHT, Reason::kPlaced},
    {Job::STATE_QUEUED, kStopAtStepAsked, Job::STATE_QUEUED, Reason::kStopAtStep},
    {Job::STATE_QUEUED, kGracefulStopAsked, Job::STATE_STOPPED, Reason::kStoppedByUser},
    {Job::STATE_QUEUED, kStopNowAsked, Job::STATE_STOPPED, Reason::kStoppedByUser},
    {Job::STATE_QUEUED, kAllocationRefused, Job::STATE_FAILED, Reason::kAllocationRefused},

    {Job::STATE_PREFLIGHT, kPreflightPassed, Job::STATE_STARTING, Reason::kLaunched},
    {Job::STATE_PREFLIGHT, kPreflightRefused, Job::STATE_FAILED, Reason::kPreflightRefused},
    {Job::STATE_PREFLIGHT, kStartPostponed, Job::STATE_QUEUED, Reason::kPreflightRefused},
    {Job::STATE_PREFLIGHT, kNodeGone, Job::STATE_QUEUED, Reason::kNodeGone},
    {Job::STATE_PREFLIGHT, kMoved, Job::STATE_QUEUED, Reason::kMoved},
    {Job::STATE_PREFLIGHT, kStopAtStepAsked, Job::STATE_PREFLIGHT, Reason::kStopAtStep},
    {Job::STATE_PREFLIGHT, kGracefulStopAsked, Job::STATE_STOPPED, Reason::kStoppedByUser},
    {Job::STATE_PREFLIGHT, kStopNowAsked, Job::STATE_STOPPED, Reason::kStoppedByUser},

    {Job::STATE_STARTING, kAllRunning, Job::STATE_RUNNING, Reason::kAllRanksUp},
    {Job::STATE_STARTING, kRankLost, Job::STATE_RESTARTING, Reason::kRankLost},
    {Job::STATE_STARTING, kMoveAsked, Job::STATE_RESTARTING, Reason::kMoving},
    {Job::STATE_STARTING, kMoveNowAsked, Job::STATE_RESTARTING, Reason::kMoving},
    {Job::STATE_STARTING, kTimeLimitReached, Job::STATE_STOPPING, Reason::kTimeLimit},
    {Job::STATE_STARTING, kStopAtStepAsked, Job::STATE_STARTING, Reason::kStopAtStep},
    {Job::STATE_STARTING, kGracefulStopAsked, Job::STATE_STOPPING, Reason::kStoppedByUser},
    {Job::STATE_STARTING, kStopNowAsked, Job::STATE_STOPPING, Reason::kStoppedByUser},
    {Job::STATE_STARTING, kGangStopped, Job::STATE_STOPPED, Reason::kStopped},
    {Job::STATE_STARTING, kGangCompleted, Job::STATE_SUCCEEDED, Reason::kCompleted},

    {Job::STATE_RUNNING, kRankLost, Job::STATE_RESTARTING, Reason::kRankLost},
    {Job::STATE_RUNNING, kMoveAsked, Job::STATE_RESTARTING, Reason::kMoving},
    {Job::STATE_RUNNING, kMoveNowAsked, Job::STATE_RESTARTING, Reason::kMoving},
    {Job::STATE_RUNNING, kTimeLimitReached, Job::STATE_STOPPING, Reason::kTimeLimit},
    {Job::STATE_RUNNING, kStopAtStepAsked, Job::STATE_RUNNING, Reason::kStopAtStep},
    {Job::STATE_RUNNING, kGracefulStopAsked, Job::STATE_STOPPING, Reason::kStoppedByUser},
    {Job::STATE_RUNNING, kStopNowAsked, Job::STATE_STOPPING, Reason::kStoppedByUser},
    {Job::STATE_RUNNING, kGangStopped, Job::STATE_STOPPED, Reason::kStopped},
    {Job::STATE_RUNNING, kGangCompleted, Job::STATE_SUCCEEDED, Reason::kCompleted},

    {Job::STATE_RESTARTING, kRestartDue, Job::STATE_STARTING, Reason::kRestarted},
    {Job::STATE_RESTARTING, kNodeGone, Job::STATE_QUEUED, Reason::kNodeGone},
    {Job::STATE_RESTARTING, kMoved, Job::STATE_QUEUED, Reason::kMoved},
    // Only while it moves to other machines.
    {Job::STATE_RESTARTING, kMoveNowAsked, Job::STATE_RESTARTING, Reason::kMoving},
    {Job::STATE_RESTARTING, kRankLost, Job::STATE_RESTARTING, Reason::kRankLost},
    {Job::STATE_RESTARTING, kGangStopped, Job::STATE_STOPPED, Reason::kStopped},
    {Job::STATE_RESTARTING, kGangCompleted, Job::STATE_SUCCEEDED, Reason::kCompleted},
    {Job::STATE_RESTARTING, kGaveUp, Job::STATE_FAILED, Reason::kRestartBudgetExhausted},
    {Job::STATE_RESTARTING, kFailedForGood, Job::STATE_FAILED, Reason::kFailedForGood},
    {Job::STATE_RESTARTING, kStopAtStepAsked, Job::STATE_RESTARTING, Reason::kStopAtStep},
    {Job::STATE_RESTARTING, kGracefulStopAsked, Job::STATE_STOPPING, Reason::kStoppedByUser},
    {Job::STATE_RESTARTING, kStopNowAsked, Job::STATE_STOPPING, Reason::kStoppedByUser},

    {Job::STATE_STOPPING, kRankLost, Job::STATE_STOPPING, Reason::kRankLost},
    {Job::STATE_STOPPING, kStopNowAsked, Job::STATE_STOPPING, Reason::kStoppedByUser},
    {Job::STATE_STOPPING, kGangStopped, Job::STATE_STOPPED, Reason::kStoppedByUser},
    {Job::STATE_STOPPING, kGangCompleted, Job::STATE_SUCCEEDED, Reason::kCompleted},

    // Only if its steps were raised.
    {Job::STATE_SUCCEEDED, kResumed, Job::STATE_QUEUED, Reason::kResumed},
    {Job::STATE_FAILED, kResumed, Job::STATE_QUEUED, Reason::kResumed},
    {Job::STATE_STOPPED, kResumed, Job::STATE_QUEUED, Reason::kResumed},
};

std::string StopName(v1::StopMode mode) {
  switch (mode) {
    case v1::STOP_MODE_AT_STEP:
      return "a stop at a step";
    case v1::STOP_MODE_GRACEFUL:
      return "a stop after the step in progress";
    case v1::STOP_MODE_NOW:
      return "a stop now";
    default:
      return "no stop";
  }
}

}  // namespace

std::string TriggerName(Trigger trigger) {
  static constexpr const char* kNames[] = {"PLACED",
                                           "PREFLIGHT_PASSED",
                                           "PREFLIGHT_REFUSED",
                                           "START_POSTPONED",
                                           "NODE_GONE",
                                           "ALL_RUNNING",
                                           "RANK_LOST",
                                           "RESTART_DUE",
                                           "GAVE_UP",
                                           "FAILED_FOR_GOOD",
                                           "STOP_AT_STEP",
                                           "GRACEFUL_STOP",
                                           "STOP_NOW",
                                           "TIME_LIMIT_REACHED",
                                           "MOVE",
                                           "MOVE_NOW",
                                           "MOVED",
                                           "GANG_STOPPED",
                                           "GANG_COMPLETED",
                                           "RESUMED",
                                           "ALLOCATION_REFUSED"};
  static_assert(std::size(kNames) == kTriggers);
  return kNames[static_cast<int>(trigger)];
}

std::string StateName(State state) {
  return std::string(absl::StripPrefix(v1::Job_State_Name(state), "STATE_"));
}

bool IsTerminal(State state) {
  return state == Job::STATE_SUCCEEDED || state == Job::STATE_FAILED || state == Job::STATE_STOPPED;
}

bool HoldsSlots(State state) { return state == Job::STATE_PREFLIGHT || HasGang(state); }

bool HasGang(State state) {
  return state == Job::STATE_STARTING || state == Job::STATE_RUNNING ||
         state == Job::STATE_RESTARTING || state == Job::STATE_STOPPING;
}

absl::StatusOr<Transition> FindTransition(State state, Trigger trigger) {
  for (const Transition& row : kTable) {
    if (row.from == state && row.trigger == trigger) return row;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "state: ", StateName(state), " (", TriggerName(trigger), " does not apply to it)"));
}

std::span<const Transition> LifecycleTable() { return kTable; }

absl::StatusOr<bool> Escalates(const v1::StopRequest& in_force, const v1::StopRequest& asked) {
  if (asked.mode() < in_force.mode()) {
    return absl::FailedPreconditionError(
        absl::StrCat("stop: ", StopName(asked.mode()), " (", StopName(in_force.mode()),
                     " is in force, and a stop only becomes more urgent); nothing to do"));
  }
  return asked.mode() != in_force.mode() || asked.at_step() != in_force.at_step();
}

}  // namespace nsa::server
