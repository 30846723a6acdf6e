// How a stored job looks to clients: JobControl::View().
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/estimate/health.h"
#include "server/act/job_control.h"
#include "server/decide/lifecycle.h"
#include "server/decide/problem/problems.h"
#include "server/decide/rule/time_limit.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kQuiet =
    absl::Seconds(10);  // a rank without progress for this long gets a note

// Stopped by a signal (T) or by a tracer (t).
bool IsSuspended(const v1::WorkerObservation& worker) {
  return worker.state() != v1::WorkerObservation::STATE_EXITED &&
         (worker.process_state() == "T" || worker.process_state() == "t");
}

std::string RankState(const RankView& rank) {
  if (rank.node != RankView::Node::kReady) return "UNKNOWN";
  if (!rank.worker.has_value()) return "STARTING";
  if (IsSuspended(*rank.worker)) return "SUSPENDED";
  switch (rank.worker->state()) {
    case v1::WorkerObservation::STATE_RUNNING:
      return "RUNNING";
    case v1::WorkerObservation::STATE_EXITED:
      return "EXITED";
    default:
      return "STARTING";
  }
}

// Seconds are rounded down to tens, so that a client that watches a stuck rank is not sent a change
// every second.
std::string For(absl::Duration time) {
  return absl::StrCat(" for ", absl::ToInt64Seconds(time) / 10 * 10, " s");
}

// `stored`: rank 0's last recorded step.
std::string RankNote(const RankView& rank, int64_t stored) {
  if (rank.node != RankView::Node::kReady) {
    return absl::StrCat("no heartbeat from its machine", For(rank.silence));
  }
  if (!rank.worker.has_value()) return "";
  std::string note;
  if (IsSuspended(*rank.worker)) {
    note = absl::StrCat("process stopped (", rank.worker->process_state(), ")");
  }
  const absl::Duration quiet = absl::Seconds(rank.worker->seconds_since_progress());
  const bool ended = rank.worker->state() == v1::WorkerObservation::STATE_EXITED;
  if (quiet >= kQuiet && !ended) {
    absl::StrAppend(&note, note.empty() ? "" : ", ", "no progress", For(quiet));
  }
  if (rank.rank == 0 && rank.steps_before > stored && !ended) {
    absl::StrAppend(&note, note.empty() ? "" : ", ", "no record for ",
                    absl::ToInt64Seconds(kRecordPatience),
                    " s or more: what is shown of the job is of step ", stored);
  }
  return note;
}

}  // namespace

v1::Job JobControl::View(const v1::StoredJob& stored) const {
  v1::Job job = stored.job();
  const std::vector<HealthFinding> found = HealthFindings(job);
  v1::JobHealth health = HealthOf(job);
  if (health.level() != v1::JobHealth::LEVEL_UNSPECIFIED) *job.mutable_health() = std::move(health);
  job.mutable_progress()->clear_health_memory();
  ShowRunTime(stored, &job);
  if (HasGang(job.state())) {
    for (const RankView& rank : fleet_.Ranks(stored, fleet_.started())) {
      v1::RankStatus& status = *job.add_ranks();
      status.set_rank(rank.rank);
      status.set_node(rank.node_name);
      status.set_state(RankState(rank));
      status.set_note(RankNote(rank, job.progress().step()));
      if (!rank.worker.has_value()) continue;
      status.set_pid(rank.worker->pid());
      status.set_step(rank.worker->step());
      status.set_phase(rank.worker->phase());
      const bool ended = rank.worker->state() == v1::WorkerObservation::STATE_EXITED;
      if (!ended) status.set_telemetry_error(rank.worker->telemetry_error());
    }
  }
  if (job.state() == v1::Job::STATE_QUEUED) {
    const QueueBoard::Place place = board_.PlaceOf(job.id());
    job.set_queue_position(place.position);
    if (ReasonFromWord(job.reason()) == Reason::kPreempted && !stored.preempted_by().empty()) {
      if (!place.text.empty()) absl::StrAppend(job.mutable_message(), "; ", place.text);
    } else if (!place.reason.empty()) {
      job.set_reason(place.reason);
      job.set_message(place.text);
    }
  }
  if (const std::string left = TimeLeftText(stored, clock_.Wall());
      !left.empty() && !IsTerminal(job.state()) && job.state() != v1::Job::STATE_STOPPING) {
    job.set_message(absl::StrCat(job.message(), job.message().empty() ? "" : "; ", left));
  }
  AddProblems(found, stored.state_unix_nanos(), &job);
  return job;
}

}  // namespace nsa::server
