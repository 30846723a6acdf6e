// The life of a job, as a table: (state, trigger) → (state, reason). Pure.
//
//   QUEUED → PREFLIGHT → STARTING → RUNNING → SUCCEEDED | FAILED | STOPPED
//                            ↑          ↓
//                            └── RESTARTING           RUNNING → STOPPING → STOPPED
//                                       ↓
//                                    QUEUED           a job that moves to other machines
//
// A pair that is not in the table cannot happen: FindTransition() refuses it and the job stays as
// it is. Terminal states are final, but a STOPPED or FAILED job can be resumed, and a SUCCEEDED one
// whose steps were raised. README.md shows the table.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/reason.h"
#include "nsa/v1/job_status.pb.h"

namespace nsa::server {

using State = v1::Job::State;

enum class Trigger {
  kPlaced,             // slots were found
  kPreflightPassed,    // the machines passed preflight
  kPreflightRefused,   // preflight refused for good
  kStartPostponed,     // preflight refused for now: tried again later
  kNodeGone,           // a machine of the placement is lost; nothing runs there
  kAllRunning,         // every rank is up
  kRankLost,           // a rank failed, ended unasked or hangs; the gang is being ended
  kRestartDue,         // the old gang is gone and the delay is over
  kGaveUp,             // the restart policy says no
  kFailedForGood,      // a rank says that a restart would fail again
  kStopAtStepAsked,    // after step N
  kGracefulStopAsked,  // after the step in progress
  kStopNowAsked,       // at once
  kTimeLimitReached,   // limits.hours: after the step in progress
  // A machine is drained, or the job gives way to another: the ranks end after the step in
  // progress.
  kMoveAsked,
  kMoveNowAsked,       // its deadline has passed: the ranks are killed
  kMoved,              // nothing of it runs on its machines any more: back into the queue
  kGangStopped,        // every rank has ended, as asked
  kGangCompleted,      // every rank has ended, all steps done
  kResumed,            // back into the queue
  kAllocationRefused,  // the cluster manager gives it no machines
};
inline constexpr int kTriggers = static_cast<int>(Trigger::kAllocationRefused) + 1;

// "PLACED".
std::string TriggerName(Trigger trigger);

// "QUEUED".
std::string StateName(State state);

// SUCCEEDED, FAILED, STOPPED.
bool IsTerminal(State state);

// The job holds slots, so its ranks may exist: PREFLIGHT … STOPPING.
bool HoldsSlots(State state);

// Ranks should exist or are being ended: STARTING, RUNNING, RESTARTING or STOPPING.
bool HasGang(State state);

struct Transition {
  State from;
  Trigger trigger;
  State to;
  Reason reason;  // used unless the caller has a more exact one
};

// The transition for `trigger` in `state`. FailedPrecondition, naming both, when there is none.
absl::StatusOr<Transition> FindTransition(State state, Trigger trigger);

// Every row, for documentation and tests.
std::span<const Transition> LifecycleTable();

// Stops only escalate: at-step → graceful → now. A new at-step request replaces an earlier one,
// also with a later step: a stop that has not happened may be postponed.
// Returns whether `asked` changes the stop in force; FailedPrecondition when it would weaken it.
absl::StatusOr<bool> Escalates(const v1::StopRequest& in_force, const v1::StopRequest& asked);

}  // namespace nsa::server
