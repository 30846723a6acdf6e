#include "server/act/sweep/advance.h"

#include <string>
#include <vector>

#include "common/base/reason.h"
#include "common/base/status.h"
#include "server/decide/job_event.h"
#include "server/decide/sweep/halving.h"
#include "server/decide/transition.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// A user may have resumed or deleted the job since the decision.
absl::Status CheckStillStopped(const v1::StoredJob& stored) {
  if (stored.job().state() == v1::Job::STATE_STOPPED && !stored.sweep_dropped()) {
    return absl::OkStatus();
  }
  return absl::AbortedError("the job has moved on");
}

absl::Status Promote(JobStore& store, const SweepPromotion& promotion, absl::Time now) {
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    NSA_RETURN_IF_ERROR(CheckStillStopped(*stored));
    NSA_RETURN_IF_ERROR(Requeue({.reason = Word(Reason::kSweepPromoted), .text = promotion.why},
                                now, stored, events));
    if (promotion.next_stop == 0) return absl::OkStatus();
    v1::StopRequest& stop = *stored->mutable_job()->mutable_stop();
    stop.set_mode(v1::STOP_MODE_AT_STEP);
    stop.set_at_step(promotion.next_stop);
    return absl::OkStatus();
  };
  return store.Update(promotion.job_id, change).status();
}

absl::Status Leave(JobStore& store, const SweepDrop& drop) {
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    NSA_RETURN_IF_ERROR(CheckStillStopped(*stored));
    stored->set_sweep_dropped(true);
    v1::Job& job = *stored->mutable_job();
    job.set_reason(Word(Reason::kSweepDropped));
    job.set_message(drop.why);
    events->push_back(EventOf(Reason::kSweepDropped, drop.why));
    return absl::OkStatus();
  };
  return store.Update(drop.job_id, change).status();
}

void Log(const std::string& job_id, const std::string& what, const absl::Status& status) {
  if (status.ok()) {
    spdlog::info("job {}: {}", job_id, what);
  } else if (!absl::IsAborted(status) && !absl::IsNotFound(status)) {
    spdlog::error("job {}: {}: {}", job_id, what, std::string(status.message()));
  }
}

void CarryOut(const SweepDecision& decision, JobStore& store, absl::Time now) {
  for (const SweepPromotion& promotion : decision.promotions) {
    const absl::Status status = Promote(store, promotion, now);
    Log(promotion.job_id, promotion.why, status);
    // The jobs below it keep their place only if it goes on: decide again in the next tick.
    if (!status.ok()) return;
  }
  for (const SweepDrop& drop : decision.drops) Log(drop.job_id, drop.why, Leave(store, drop));
}

}  // namespace

void AdvanceSweeps(JobStore& store, absl::Time now) {
  for (const std::vector<JobPtr>& sweep : store.HalvedSweeps()) {
    std::vector<const v1::StoredJob*> jobs;
    for (const JobPtr& job : sweep) jobs.push_back(job.get());
    CarryOut(DecideSweep(jobs), store, now);
  }
}

}  // namespace nsa::server
