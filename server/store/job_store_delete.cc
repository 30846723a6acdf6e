// The part of JobStore that deletes jobs.
//
// A job is first marked as deleted, in one small transaction. This is acknowledged to the caller,
// and from then on the job is no longer in memory. Its rows, which may be many, are removed a few
// at a time and its own row last, so that after a restart in between the mark is found and the
// removal continues. The mark is a field of the stored job, so the database schema did not change.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "server/decide/lifecycle.h"
#include "server/store/job_store.h"

namespace nsa::server {
namespace {

// The fingerprint that is stored with a deletion's request id. It differs from every fingerprint of
// a submit.
std::string FingerprintOf(const std::string& id_or_name) {
  return absl::StrCat("delete ", id_or_name);
}

}  // namespace

absl::StatusOr<JobStore::Deleted> JobStore::Delete(const std::string& id_or_name, DeletedBy by,
                                                   const std::string& request_id,
                                                   const std::string& owner,
                                                   const JobPtr& unchanged) {
  absl::StatusOr<Deleted> deleted;
  {
    MutexLock lock(&mutex_);
    deleted = DeleteLocked(id_or_name, request_id, owner, unchanged);
  }
  const bool known = deleted.ok() && deleted->job == nullptr;
  if (known) return deleted;
  if (deleted.ok() && observer_.deleted) observer_.deleted(*deleted->job, by);
  ReportIfFailed(deleted.status(), "delete", deleted.ok() ? deleted->job_id : id_or_name);
  return deleted;
}

absl::StatusOr<JobStore::Deleted> JobStore::DeleteLocked(const std::string& id_or_name,
                                                         const std::string& request_id,
                                                         const std::string& owner,
                                                         const JobPtr& unchanged) {
  const std::string fingerprint = FingerprintOf(id_or_name);
  if (!request_id.empty()) {
    NSA_ASSIGN_OR_RETURN(Statement row,
                         database_->Prepare("SELECT fingerprint, job FROM requests WHERE id = ?"));
    NSA_ASSIGN_OR_RETURN(const bool found, row.Bind(1, request_id).Step());
    if (found && row.Text(0) == fingerprint) return Deleted{.job_id = row.Text(1)};
    if (found) {
      return absl::AlreadyExistsError(absl::StrCat("request_id: ", request_id,
                                                   " (that of another request, about job ",
                                                   row.Text(1), "); choose a new one"));
    }
  }
  NSA_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(id_or_name, owner, v1::JOB_USE_ENDED));
  const JobPtr job = entry->job;
  const std::string id = job->job().id();
  if (unchanged != nullptr && job != unchanged) {
    return absl::AbortedError(
        absl::StrCat("job: ", id, " has changed meanwhile; look at it again before you delete it"));
  }
  if (!IsTerminal(job->job().state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("state: job ", id, " is ", StateTitle(job->job()),
                     " and can be deleted only when it has ended; end it with `nsactl stop ", id,
                     "`, then delete it"));
  }
  v1::StoredJob marked = *job;
  marked.set_deleted(true);
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_RETURN_IF_ERROR(WriteJob(entry->number, marked));
  if (!request_id.empty()) NSA_RETURN_IF_ERROR(WriteRequest(request_id, fingerprint, id));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  Drop(id);
  return Deleted{.job_id = id, .job = job};
}

std::vector<JobPtr> JobStore::EndedBefore(absl::Time when, size_t limit) const {
  const int64_t before = absl::ToUnixNanos(when);
  std::vector<JobPtr> ended;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, entry] : jobs_) {
      const v1::Job& job = entry.job->job();
      const bool ended_then = job.end_unix_nanos() > 0 && job.end_unix_nanos() < before;
      if (IsTerminal(job.state()) && ended_then) ended.push_back(entry.job);
    }
  }
  const size_t count = std::min(limit, ended.size());
  std::ranges::partial_sort(ended, ended.begin() + static_cast<std::ptrdiff_t>(count), {},
                            [](const JobPtr& job) {
                              return std::make_pair(job->job().end_unix_nanos(), job->job().id());
                            });
  ended.resize(count);
  return ended;
}

std::string JobStore::NextToPurge(const std::set<std::string>& but) const {
  MutexLock lock(&mutex_);
  const auto next =
      std::ranges::find_if(deleted_, [&](const auto& entry) { return !but.contains(entry.first); });
  return next == deleted_.end() ? "" : next->first;
}

void JobStore::ReportNotRemoved(const std::string& job_id, const absl::Status& status) const {
  ReportIfFailed(status, "delete", job_id);
}

absl::StatusOr<bool> JobStore::Purge(const std::string& job_id, int rows) {
  absl::StatusOr<bool> empty;
  {
    MutexLock lock(&mutex_);
    empty = PurgeLocked(job_id, rows);
  }
  if (!empty.ok()) ReportIfFailed(empty.status(), "delete", job_id);
  return empty;
}

absl::StatusOr<bool> JobStore::PurgeLocked(const std::string& job_id, int rows) {
  const auto job = deleted_.find(job_id);
  if (job == deleted_.end()) return true;
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  int64_t left = rows;
  for (const auto& [table, key] :
       {std::make_pair("records", "position"), std::make_pair("events", "sequence"),
        std::make_pair("curve", "row")}) {
    NSA_ASSIGN_OR_RETURN(Statement some,
                         database_->Prepare(absl::StrCat(
                             "DELETE FROM ", table, " WHERE ", key, " IN (SELECT ", key, " FROM ",
                             table, " INDEXED BY ", table, "_by_job WHERE job = ? LIMIT ?)")));
    NSA_RETURN_IF_ERROR(some.Bind(1, job->second).Bind(2, left).Run());
    left -= database_->changes();
  }
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  return left > 0;
}

absl::Status JobStore::Forget(const std::string& job_id) {
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    status = ForgetLocked(job_id);
  }
  if (!status.ok()) ReportIfFailed(status, "delete", job_id);
  return status;
}

absl::Status JobStore::ForgetLocked(const std::string& job_id) {
  const auto job = deleted_.find(job_id);
  if (job == deleted_.end()) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  for (const char* rows :
       {"DELETE FROM progress WHERE job = ?", "DELETE FROM jobs WHERE number = ?"}) {
    NSA_ASSIGN_OR_RETURN(Statement row, database_->Prepare(rows));
    NSA_RETURN_IF_ERROR(row.Bind(1, job->second).Run());
  }
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  deleted_.erase(job);
  return absl::OkStatus();
}

}  // namespace nsa::server
