#include "server/act/queue/hold_jobs.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "common/job/start_time.h"
#include "server/act/request_error.h"
#include "server/decide/lifecycle.h"
#include "server/decide/queue/hold.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

using v1::Predecessor;

constexpr size_t kNameBytes = 63;

// The job of an id; null if there is none any more. A job may have another one's id for its name.
JobPtr WithId(const JobStore& store, const std::string& id) {
  const auto found = store.Find(id);
  return found.ok() && (*found)->job().id() == id ? *found : nullptr;
}

// Whether `job` waits for the one with this id, directly or through others. A job that is done
// waits for nobody.
bool WaitsFor(const JobStore& store, const JobPtr& job, const std::string& id) {
  std::set<std::string> seen;
  std::vector<JobPtr> left = {job};
  while (!left.empty()) {
    const JobPtr next = std::move(left.back());
    left.pop_back();
    if (next == nullptr) continue;
    if (next->job().id() == id) return true;
    for (const Predecessor& one : next->job().after()) {
      if (one.state() == Predecessor::STATE_DONE || !seen.insert(one.id()).second) continue;
      left.push_back(WithId(store, one.id()));
    }
  }
  return false;
}

std::vector<Predecessor::State> FatesOf(const JobStore& store, const v1::Job& job) {
  std::vector<Predecessor::State> fates;
  for (const Predecessor& one : job.after()) {
    const bool done = one.state() == Predecessor::STATE_DONE;
    fates.push_back(done ? one.state() : FateOf(WithId(store, one.id()).get()));
  }
  return fates;
}

absl::Status Refused(const std::string& field, const absl::Status& why) {
  const absl::Status status = Annotate(why, field);
  return WithViolation(status, field, std::string(why.message()));
}

}  // namespace

absl::StatusOr<JobPtr> FindAwaited(const JobStore& store, const std::string& name,
                                   const std::string& only) {
  const auto found = store.Find(name, only);
  if (!found.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", CleanLine(CutText(name, kNameBytes)),
                     "' (the name or id of a job); name one that `nsactl list` shows"));
  }
  if (FateOf(found->get()) != Predecessor::STATE_ENDED) return found;
  const v1::Job& job = (*found)->job();
  return absl::InvalidArgumentError(
      absl::StrCat(job.name(), " (", job.id(), ") is ", StateTitle(job),
                   " and will not finish; resume it first (`nsactl resume ", job.id(),
                   "`), or name another job"));
}

absl::Status HoldForJobs(const JobStore& store, const std::string& only, v1::Job* job) {
  std::vector<Predecessor> after;
  std::set<std::string> ids;
  for (int i = 0; i < job->spec().after_size(); ++i) {
    const std::string field = absl::StrCat("after[", i, "]");
    const auto found = FindAwaited(store, job->spec().after(i), only);
    if (!found.ok()) return Refused(field, found.status());
    const v1::Job& awaited = (*found)->job();
    if (!ids.insert(awaited.id()).second) {
      return Refused(field, absl::InvalidArgumentError(absl::StrCat(
                                awaited.id(), " (must be named once); remove it: ", awaited.name(),
                                " and this id are the same job")));
    }
    if (WaitsFor(store, *found, job->id())) {
      return Refused(field, absl::InvalidArgumentError(
                                absl::StrCat(awaited.name(), " (", awaited.id(),
                                             ") waits for this job; name one that does not")));
    }
    Predecessor& one = after.emplace_back();
    one.set_id(awaited.id());
    one.set_name(awaited.name());
    one.set_state(FateOf(found->get()));
  }
  job->mutable_after()->Assign(after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status HoldForTime(absl::Time submit, v1::Job* job) {
  job->clear_not_before_unix_nanos();
  if (job->spec().not_before().empty()) return absl::OkStatus();
  const auto start = StartTimeFor(job->spec().not_before(), submit);
  if (!start.ok()) return Refused("not_before", start.status());
  if (*start > submit) job->set_not_before_unix_nanos(absl::ToUnixNanos(*start));
  return absl::OkStatus();
}

void KeepHolds(JobStore& store, const std::vector<JobPtr>& active, absl::Time now) {
  for (const JobPtr& job : active) {
    if (job->job().state() != v1::Job::STATE_QUEUED || !HoldOf(job->job()).has_value()) continue;
    const std::vector<Predecessor::State> fates = FatesOf(store, job->job());
    if (!IsNews(fates, now, job->job())) continue;
    const auto note = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
      // A resume with another `after` came between.
      if (stored->job().state() != v1::Job::STATE_QUEUED ||
          stored->queued_unix_nanos() != job->queued_unix_nanos()) {
        return absl::AbortedError("the job has moved on");
      }
      NoteFates(fates, now, stored, events);
      return absl::OkStatus();
    };
    const absl::Status noted = store.Update(job->job().id(), note).status();
    if (noted.ok() || absl::IsAborted(noted)) continue;
    spdlog::error("job {}: {}", job->job().id(), std::string(noted.message()));
  }
}

}  // namespace nsa::server
