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
  std::string text;    // for people
  int32_t rank = -1;   // where it came from
  v1::Severity severity = v1::SEVERITY_INFO;
  absl::Time next_start = absl::InfinitePast();  // when it is tried again, if it is
};

// FailedPrecondition when the table has no such row; then nothing is changed.
absl::Status Apply(Trigger trigger, const Cause& cause, absl::Time now, v1::StoredJob* stored,
                   std::vector<v1::JobEvent>* events);

// Schedules the next start of a RESTARTING job: delay, budget and event. Aborted when the job is in
// another state by now; then nothing is changed.
absl::Status ApplyRestart(const Failure& failure, const RestartDecision& decision, absl::Time now,
                          v1::StoredJob* stored, std::vector<v1::JobEvent>* events);

// What a generation must move for a restart to be worth it: the step of the newest checkpoint, or
// of a job that saves none the step.
int64_t ProgressMark(const v1::Job& job);

}  // namespace nsa::server
