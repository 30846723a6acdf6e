// Applies a row of the lifecycle table to a stored job: state, reason, times, event.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/gang.h"
#include "server/decide/lifecycle.h"
#include "server/decide/restart_policy.h"

namespace nsa::server {

struct Cause {
  std::string reason;  // more exact than the table's; empty: the table's
  std::string text;    // human-readable
  int32_t rank = -1;   // the rank it came from; -1: none
  v1::Severity severity = v1::SEVERITY_INFO;
  absl::Time next_start = absl::InfinitePast();  // of the next try; InfinitePast: none
};

// FailedPrecondition when the table has no such row; then nothing is changed.
absl::Status Apply(Trigger trigger, const Cause& cause, absl::Time now, v1::StoredJob* stored,
                   std::vector<v1::JobEvent>* events);

// Puts a job that has ended back into the queue: trigger kResumed. Forgets its stop, its end and
// the restarts counted so far.
absl::Status Requeue(const Cause& cause, absl::Time now, v1::StoredJob* stored,
                     std::vector<v1::JobEvent>* events);

// Schedules the next start of a RESTARTING job: sets the delay, counts the restart, adds the event.
// Aborted when the job has left that state meanwhile; then nothing is changed.
absl::Status ApplyRestart(const Failure& failure, const RestartDecision& decision, absl::Time now,
                          v1::StoredJob* stored, std::vector<v1::JobEvent>* events);

// A measure of progress: a generation that does not raise it made no progress. It is the step of
// the newest checkpoint or, for a job that saves none, the step.
int64_t ProgressMark(const v1::Job& job);

}  // namespace nsa::server
