// What the reconciler does next with one job. Pure: facts in, one action out. The reconciler
// (act/reconciler.cc) gathers the facts and carries out the action.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/gang.h"
#include "server/decide/hang_policy.h"
#include "server/decide/lifecycle.h"
#include "server/decide/restart_policy.h"
#include "server/decide/rule/cordon.h"
#include "server/decide/transition.h"

namespace nsa::server {

// What is known of a job at one moment. The job is borrowed.
struct JobFacts {
  const v1::StoredJob& job;
  std::vector<RankView> ranks;  // of the current generation, last records included
  absl::Duration now;           // monotonic
  absl::Time wall_time;
  double jitter = 0.5;             // uniform in [0, 1): spreads restarts
  absl::Duration told;             // monotonic: when agents were sent the job's current situation
  bool checking = false;           // a preflight of this job is running
  HangState hang;                  // whether a hang is suspected
  absl::Duration last_checkpoint;  // how long the slowest checkpoint so far took
  Refusals refusals;               // starts refused in a row
  Leave leave;                     // whether it may stay on its machines
  std::string gives_way_to;        // the job that it gives way to, human-readable; else empty
};

namespace action {

// Nothing to do now.
struct Wait {};

// Apply a row of the lifecycle table.
struct Move {
  Trigger trigger;
  Cause cause;
};

// Run preflight against the machines of the placement; AfterCheck() says what follows.
struct CheckLaunch {};

// A hang is suspected: dump the stacks of all ranks.
struct DumpStacks {
  std::string why;
};

// A rank has stood still for a while: save the stacks of all ranks.
struct SaveStacks {
  std::string why;
  absl::Duration since_progress;
};

// Every rank makes progress again.
struct EndSuspicion {};

// The gang has ended: start it again after a delay.
struct Restart {
  Failure failure;
  RestartDecision decision;
};

// A start from the queue was refused for a reason that may go away: back into the queue.
struct PostponeStart {
  Failure refusal;
  absl::Duration delay;
};

}  // namespace action

using Action =
    std::variant<action::Wait, action::Move, action::CheckLaunch, action::DumpStacks,
                 action::SaveStacks, action::EndSuspicion, action::Restart, action::PostponeStart>;

// The next action for a job in its current state. Wait for QUEUED and for jobs that have ended.
Action Next(const JobFacts& facts);

// The result of a preflight before a launch.
struct LaunchCheck {
  bool accepted = false;
  std::string nodes;     // names, human-readable
  std::string problem;   // the first finding that refuses
  bool passing = false;  // every refusal may go away by itself: a full disk, memory taken by others
};

// What to do after a preflight that action::CheckLaunch asked for. `facts.ranks` is not read. A job
// that was accepted starts only if none of its machines has been cordoned meanwhile.
Action AfterCheck(const JobFacts& facts, const LaunchCheck& check);

}  // namespace nsa::server
