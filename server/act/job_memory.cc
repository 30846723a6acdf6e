#include "server/act/job_memory.h"

#include <algorithm>

#include "server/decide/transition.h"

namespace nsa::server {

JobMemory::Entry JobMemory::Observe(const v1::StoredJob& job, absl::Duration now) {
  // A refused restart changes nothing else in the situation, so the count of refusals shows that a
  // new wait has begun.
  const bool waits = job.job().state() == v1::Job::STATE_RESTARTING;
  MutexLock lock(&mutex_);
  const Situation situation = {.state = job.job().state(),
                               .generation = job.job().generation(),
                               .gang_ending = job.gang_ending(),
                               .restart_decided = job.restart_decided(),
                               .restarts = job.job().restarts(),
                               .refusals = waits ? RefusalsLocked(job.job()).count : 0};
  Entry& entry = jobs_[job.job().id()];
  if (entry.situation != situation) {
    entry.situation = situation;
    entry.told = now;
    entry.hang = {};
  }
  Entry view = entry;
  view.refusals = RefusalsLocked(job.job());
  return view;
}

void JobMemory::Suspect(const std::string& job_id, absl::Duration now) {
  MutexLock lock(&mutex_);
  HangState& hang = jobs_[job_id].hang;
  hang.suspected = true;
  hang.suspected_since = now;
}

void JobMemory::EndSuspicion(const std::string& job_id) {
  MutexLock lock(&mutex_);
  jobs_[job_id].hang.suspected = false;
}

void JobMemory::NoteSaved(const std::string& job_id, absl::Duration now) {
  MutexLock lock(&mutex_);
  jobs_[job_id].hang.saved_at = now;
}

void JobMemory::SetChecking(const std::string& job_id, bool checking) {
  MutexLock lock(&mutex_);
  if (const auto found = jobs_.find(job_id); found != jobs_.end()) {
    found->second.checking = checking;
  }
}

bool JobMemory::NoteGpuFault(const std::string& job_id, const std::string& fault) {
  MutexLock lock(&mutex_);
  return jobs_[job_id].told_of_gpus.insert(fault).second;
}

void JobMemory::NoteCheckpoint(const std::string& job_id, absl::Duration duration) {
  MutexLock lock(&mutex_);
  Entry& entry = jobs_[job_id];
  entry.last_checkpoint = std::max(entry.last_checkpoint, duration);
}

Refusals JobMemory::RefusalsOf(const v1::Job& job) const {
  MutexLock lock(&mutex_);
  return RefusalsLocked(job);
}

Refusals JobMemory::RefusalsLocked(const v1::Job& job) const {
  const auto found = jobs_.find(job.id());
  const bool stale =
      found == jobs_.end() || found->second.refusals.progress_mark != ProgressMark(job);
  return stale ? Refusals() : found->second.refusals;
}

void JobMemory::NoteFailure(const v1::Job& job, const Failure& failure, absl::Duration delay,
                            absl::Duration now) {
  MutexLock lock(&mutex_);
  constexpr absl::Duration kLongestSeriesGap = absl::Hours(2);  // between tries, an hour at most
  Refusals refusals = RefusalsLocked(job);
  // It waited for slots since it was due: nothing is known of that time.
  if (refusals.count > 0 && now - refusals.due > kLongestSeriesGap) refusals = Refusals();
  if (refusals.count == 0) refusals.since = now;
  ++refusals.count;
  refusals.progress_mark = ProgressMark(job);
  refusals.due = now + delay;
  jobs_[job.id()].refusals = failure.refused ? refusals : Refusals();
}

void JobMemory::ForgiveStandstill(absl::Duration gap) {
  MutexLock lock(&mutex_);
  for (auto& [id, entry] : jobs_) {
    if (entry.situation.state == v1::Job::STATE_STOPPING) entry.told += gap;
  }
}

void JobMemory::Prune(const std::set<std::string>& active_jobs) {
  MutexLock lock(&mutex_);
  std::erase_if(jobs_, [&](const auto& entry) { return !active_jobs.contains(entry.first); });
}

}  // namespace nsa::server
