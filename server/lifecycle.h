// The life of a job, as a table: (state, what happened) → (state, reason). Pure.
//
//   QUEUED → PREFLIGHT → STARTING → RUNNING → SUCCEEDED | FAILED | STOPPED
//                            ↑          ↓
//                            └── RESTARTING           RUNNING → STOPPING → STOPPED
//
// A pair that is not in the table cannot happen: Next() refuses it and the job stays as it is.
// Terminal states are final, but a STOPPED or FAILED job can be resumed. README.md shows the table.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::server {

using State = v1::Job::State;

enum class Happening {
  kPlaced,             // slots were found
  kPreflightPassed,    // the machine will do
  kPreflightRefused,   // it will not
  kStartPostponed,     // it will not now: tried again later
  kNodeGone,           // a machine of the placement is gone; nothing runs
  kAllRunning,         // every rank is up
  kRankLost,           // a rank ended that should not have, or hangs; the gang is being ended
  kRestartDue,         // the old gang is gone and the delay is over
  kGaveUp,             // the restart policy says no
  kFailedForGood,      // a rank says that a restart would fail again
  kStopAtStepAsked,    // after step N
  kGracefulStopAsked,  // after the step in progress
  kStopNowAsked,       // at once
  kGangStopped,        // every rank has ended, as asked
  kGangCompleted,      // every rank has ended, all steps done
  kResumed,            // back into the queue
};
inline constexpr int kHappenings = static_cast<int>(Happening::kResumed) + 1;

// "PLACED".
std::string HappeningName(Happening happening);

// "QUEUED".
std::string StateName(State state);

// SUCCEEDED, FAILED, STOPPED.
bool IsTerminal(State state);

// The job holds slots, so its ranks may exist: PREFLIGHT … STOPPING.
bool HoldsSlots(State state);

// Ranks should exist or are being ended: STARTING, RUNNING, RESTARTING, STOPPING.
bool HasGang(State state);

struct Transition {
  State from;
  Happening happening;
  State to;
  const char* reason;  // UPPER_SNAKE; the caller may have a more exact one
};

// Where `happening` leads from `state`. FailedPrecondition when it leads nowhere, naming both.
absl::StatusOr<Transition> Next(State state, Happening happening);

// Every row, for documentation and tests.
const std::vector<Transition>& LifecycleTable();

// Stops only escalate: at-step → graceful → now. A later at-step replaces an earlier one. Returns
// whether `asked` changes what is in force, and FailedPrecondition when it would weaken it.
absl::StatusOr<bool> Escalates(const v1::StopRequest& in_force, const v1::StopRequest& asked);

}  // namespace nsa::server
