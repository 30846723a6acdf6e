#include "server/decide/transition.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/homes.h"
#include "server/decide/job_event.h"
#include "server/decide/rule/time_limit.h"

namespace nsa::server {
namespace {

// Clears what was stored about ending and restarting the last gang.
void ForgetGang(v1::StoredJob* stored) {
  stored->set_restart_decided(false);
  stored->set_restart_delay_seconds(0);
  stored->set_gang_ending(false);
}

// Updates the other fields of the stored job when it enters a state.
void Enter(State to, int64_t now, v1::StoredJob* stored) {
  v1::Job& job = *stored->mutable_job();
  stored->set_state_unix_nanos(now);
  job.clear_next_start_unix_nanos();
  // Machines of a cluster manager are not held while the job waits.
  if (to == v1::Job::STATE_QUEUED || IsTerminal(to)) EndAllocation(&job);
  if (to == v1::Job::STATE_QUEUED) {
    ForgetGang(stored);
    NoteHomes(stored);
    stored->clear_placements();
    stored->set_queued_unix_nanos(now);
  } else if (to == v1::Job::STATE_STARTING) {
    ForgetGang(stored);
    job.set_generation(job.generation() + 1);
    NoteHomes(stored);
    if (job.start_unix_nanos() == 0) job.set_start_unix_nanos(now);
    stored->set_progress_mark(ProgressMark(job));
  } else if (IsTerminal(to)) {
    ForgetGang(stored);
    NoteHomes(stored);
    stored->clear_placements();
    job.set_end_unix_nanos(now);
    job.mutable_progress()->set_eta_seconds(to == v1::Job::STATE_SUCCEEDED ? 0 : -1);
  }
}

// Whether the job keeps its reason and message, and only its history has the event. A stop at a
// later step does not say why the ranks are being ended. A job that stops at its time limit stops
// for that reason whatever happens to its ranks meanwhile, unless a user asks for something.
bool KeepsReason(const v1::Job& job, Trigger trigger, const Cause& cause) {
  if (job.state() == v1::Job::STATE_RESTARTING) return trigger == Trigger::kStopAtStepAsked;
  const bool at_limit =
      job.state() == v1::Job::STATE_STOPPING && ReasonFromWord(job.reason()) == Reason::kTimeLimit;
  return at_limit && (trigger == Trigger::kRankLost ||
                      (trigger == Trigger::kStopNowAsked && !cause.reason.empty()));
}

// Drops the restarts that are too old to count against the budget, and adds one when `counts`.
void CountRestart(bool counts, absl::Time now, v1::StoredJob* stored) {
  auto& counted = *stored->mutable_counted_restart_unix_nanos();
  const auto expired = [&](int64_t nanos) {
    return now - absl::FromUnixNanos(nanos) >= kRestartWindow;
  };
  counted.erase(std::remove_if(counted.begin(), counted.end(), expired), counted.end());
  if (counts) counted.Add(absl::ToUnixNanos(now));
}

}  // namespace

int64_t ProgressMark(const v1::Job& job) {
  const bool saves = job.spec().train().save_every() > 0;
  return saves ? job.progress().checkpoint_step() : job.progress().step();
}

absl::Status Apply(Trigger trigger, const Cause& cause, absl::Time now, v1::StoredJob* stored,
                   std::vector<v1::JobEvent>* events) {
  v1::Job& job = *stored->mutable_job();
  NSA_ASSIGN_OR_RETURN(const Transition row, FindTransition(job.state(), trigger));
  const bool keeps_reason = KeepsReason(job, trigger, cause);
  if (row.to != row.from) {
    const int64_t queued = stored->queued_unix_nanos();
    stored->set_run_seconds(RunSeconds(*stored, now));
    Enter(row.to, absl::ToUnixNanos(now), stored);
    // A job that was placed again, or has ended, no longer gives way.
    if (row.to == v1::Job::STATE_PREFLIGHT || IsTerminal(row.to)) stored->clear_preempted_by();
    // A job that was moved keeps its place in the queue.
    if (trigger == Trigger::kMoved) stored->set_queued_unix_nanos(queued);
  }
  if (trigger == Trigger::kRankLost || trigger == Trigger::kMoveNowAsked) {
    stored->set_gang_ending(true);
  }
  if (trigger == Trigger::kTimeLimitReached) {
    job.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
    job.mutable_stop()->clear_at_step();
  }
  const std::string reason = cause.reason.empty() ? Word(row.reason) : cause.reason;
  job.set_state(row.to);
  if (!keeps_reason) {
    job.set_reason(reason);
    job.set_message(cause.text);
  }
  if (cause.next_start != absl::InfinitePast()) {
    job.set_next_start_unix_nanos(absl::ToUnixNanos(cause.next_start));
  }
  v1::JobEvent& event = events->emplace_back();
  event.set_reason(reason);
  event.set_text(cause.text);
  event.set_severity(cause.severity);
  event.set_rank(cause.rank);
  return absl::OkStatus();
}

absl::Status Requeue(const Cause& cause, absl::Time now, v1::StoredJob* stored,
                     std::vector<v1::JobEvent>* events) {
  NSA_RETURN_IF_ERROR(Apply(Trigger::kResumed, cause, now, stored, events));
  v1::Job& job = *stored->mutable_job();
  job.clear_stop();
  job.clear_end_unix_nanos();
  stored->clear_counted_restart_unix_nanos();
  stored->set_generations_without_progress(0);
  stored->set_generations_cut_short(0);
  return absl::OkStatus();
}

absl::Status ApplyRestart(const Failure& failure, const RestartDecision& decision, absl::Time now,
                          v1::StoredJob* stored, std::vector<v1::JobEvent>* events) {
  v1::Job& job = *stored->mutable_job();
  if (job.state() != v1::Job::STATE_RESTARTING) {
    return absl::AbortedError("the job has moved on");
  }
  stored->set_run_seconds(RunSeconds(*stored, now));
  // If a restart was already decided, preflight refused its start: it is still the same restart.
  if (!stored->restart_decided()) job.set_restarts(job.restarts() + 1);
  stored->set_restart_decided(true);
  stored->set_restart_delay_seconds(absl::ToDoubleSeconds(decision.delay));
  stored->set_generations_without_progress(decision.without_progress);
  stored->set_generations_cut_short(decision.cut_short);
  CountRestart(decision.counts, now, stored);
  job.set_reason(failure.reason);
  job.set_message(failure.text);
  job.set_next_start_unix_nanos(absl::ToUnixNanos(now + decision.delay));
  events->push_back(
      EventOf(Reason::kRestartScheduled,
              absl::StrFormat("in %.1f s, because of %s: %s", absl::ToDoubleSeconds(decision.delay),
                              failure.reason, failure.text),
              v1::SEVERITY_WARNING, failure.rank));
  return absl::OkStatus();
}

}  // namespace nsa::server
