#include "server/act/retention.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/act/job_control.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// Rows deleted in one transaction. It takes a few milliseconds, during which no other change can be
// stored.
constexpr int kRows = 500;
constexpr absl::Duration kAgeCheckEvery = absl::Minutes(1);
constexpr absl::Duration kRetry = absl::Minutes(1);

}  // namespace

Retention::Retention(Parts parts) : parts_(parts) {}

void Retention::Tick() {
  if (busy_) return;
  const absl::Duration now = parts_.clock.Monotonic();
  if (failed_.exchange(false)) retry_at_ = now + kRetry;
  const std::optional<absl::Time> oldest_kept = OldestKept(now);
  if (now >= retry_at_) stuck_.clear();
  if (!oldest_kept.has_value() && parts_.store.NextToPurge(stuck_).empty()) return;
  busy_ = true;
  parts_.executor.Run([this, oldest_kept] {
    Work(oldest_kept);
    busy_ = false;
  });
}

// Jobs that ended before this time are deleted. Empty when nothing is to be deleted by age now.
std::optional<absl::Time> Retention::OldestKept(absl::Duration now) {
  const absl::Time wall = parts_.clock.Wall();
  const absl::Duration offset = wall - absl::UnixEpoch() - now;
  if (absl::AbsDuration(offset - offset_) > kJump) {
    offset_ = offset;
    steady_since_ = now;
  }
  if (parts_.keep == absl::ZeroDuration() || now - steady_since_ < kSteady ||
      now < next_age_check_) {
    return std::nullopt;
  }
  next_age_check_ = now + kAgeCheckEvery;
  return wall - parts_.keep;
}

// Runs on the executor.
void Retention::Work(std::optional<absl::Time> oldest_kept) {
  while (!parts_.draining) {
    // Jobs that are already deleted are removed first, so that little is left over at any time. A
    // job that cannot be removed does not hold up the others.
    if (const std::string left = parts_.store.NextToPurge(stuck_); !left.empty()) {
      if (PurgeSome(left)) continue;
      stuck_.insert(left);
      failed_ = true;
    } else if (!oldest_kept.has_value() || !DeleteOne(*oldest_kept)) {
      return;
    }
  }
}

// Returns false when there is no such job or deleting it failed.
bool Retention::DeleteOne(absl::Time oldest_kept) {
  const std::vector<JobPtr> old = parts_.store.EndedBefore(oldest_kept, 1);
  if (old.empty()) return false;
  const v1::Job& job = old.front()->job();
  // The job may have been resumed or deleted meanwhile; then the next check skips it.
  const auto deleted = parts_.store.Delete(job.id(), DeletedBy::kRetention, "");
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
