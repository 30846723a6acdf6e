#include "server/act/retention.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "server/act/job_control.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// Rows deleted in one transaction. It takes a few milliseconds, during which no other change can be
// stored.
constexpr int kRows = 500;
// Old jobs that are looked for at a time, among all jobs.
constexpr size_t kOldJobs = 64;
constexpr absl::Duration kAgeCheckEvery = absl::Minutes(1);
constexpr absl::Duration kRetry = absl::Minutes(1);

}  // namespace

Retention::Retention(Parts parts) : parts_(parts) {}

void Retention::Tick() {
  if (busy_) return;
  const absl::Duration now = parts_.clock.Monotonic();
  if (failed_.exchange(false)) retry_at_ = now + kRetry;
  const bool by_age = IsAgeDue(now);
  if (now >= retry_at_) stuck_.clear();
  if (!by_age && !shrinks_ && parts_.store.NextToPurge(stuck_).empty()) return;
  busy_ = true;
  parts_.executor.Run([this, by_age] {
    Work(by_age);
    busy_ = false;
  });
}

// Whether it is time to look for what is old.
bool Retention::IsAgeDue(absl::Duration now) {
  const absl::Duration offset = parts_.clock.Wall() - absl::UnixEpoch() - now;
  if (absl::AbsDuration(offset - offset_) > kJump) {
    offset_ = offset;
    steady_since_ = now;
  }
  if (now - steady_since_ < kSteady || now < next_age_check_) return false;
  next_age_check_ = now + kAgeCheckEvery;
  return true;
}

// Runs on the executor.
void Retention::Work(bool by_age) {
  const absl::Time now = parts_.clock.Wall();
  const bool deletes = by_age && parts_.keep != absl::ZeroDuration();
  std::vector<JobPtr> next;
  while (!parts_.draining) {
    // Jobs that are already deleted are removed first, so that little is left over at any time. A
    // job that cannot be removed does not hold up the others.
    if (const std::string left = parts_.store.NextToPurge(stuck_); !left.empty()) {
      if (PurgeSome(left)) continue;
      stuck_.insert(left);
      failed_ = true;
    } else if (!deletes || !DeleteNext(now - parts_.keep, &next)) {
      break;
    }
  }
  if (by_age) Tidy(now);
  if (parts_.draining || !(by_age || shrinks_)) return;
  const auto shrunk = parts_.store.Shrink(kPages);
  shrinks_ = shrunk.ok() && !*shrunk;
  if (!shrunk.ok()) spdlog::warn("job store: {}", shrunk.status().ToString());
}

void Retention::Tidy(absl::Time now) {
  while (!parts_.draining) {
    const auto tidy = parts_.store.Tidy(now, kRows);
    if (!tidy.ok()) spdlog::warn("job store: {}", tidy.status().ToString());
    if (!tidy.ok() || *tidy) return;
  }
}

// Deletes the last of `next`, which is filled when it is empty, unless that job has changed since.
// Returns false when there is none or deleting it failed.
bool Retention::DeleteNext(absl::Time oldest_kept, std::vector<JobPtr>* next) {
  if (next->empty()) {
    *next = parts_.store.EndedBefore(oldest_kept, kOldJobs);
    std::ranges::reverse(*next);
  }
  if (next->empty()) return false;
  const JobPtr old = std::move(next->back());
  next->pop_back();
  const v1::Job& job = old->job();
  const auto deleted = parts_.store.Delete(job.id(), DeletedBy::kRetention, "", "", old);
  // It may have been resumed or deleted meanwhile; the next look decides.
  if (absl::IsAborted(deleted.status()) || absl::IsNotFound(deleted.status())) return true;
  if (!deleted.ok()) {
    spdlog::warn("job {}: not deleted: {}", job.id(), std::string(deleted.status().message()));
    return false;
  }
  spdlog::info("job {}: deleted after job_retention_days: {}", job.id(), DeletionText(job));
  ReleaseFolder(job);
  return true;
}

// Returns false when it has failed.
bool Retention::PurgeSome(const std::string& job_id) {
  const absl::Status status = [&]() -> absl::Status {
    NSA_ASSIGN_OR_RETURN(const bool empty, parts_.store.Purge(job_id, kRows));
    if (!empty) return absl::OkStatus();
    if (const absl::Status files = RemoveFiles(job_id); !files.ok()) {
      parts_.store.ReportNotRemoved(job_id, files);
      return files;
    }
    return parts_.store.Forget(job_id);
  }();
  if (status.ok()) return true;
  spdlog::warn("deleted job {}: not everything is removed yet: {}", job_id,
               std::string(status.message()));
  return false;
}

absl::Status Retention::RemoveFiles(const std::string& job_id) const {
  NSA_RETURN_IF_ERROR(parts_.logs.Remove(job_id));
  return parts_.stacks.Remove(job_id);
}

}  // namespace nsa::server
