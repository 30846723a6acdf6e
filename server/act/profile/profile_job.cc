#include "server/act/profile/profile_job.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "server/decide/job_event.h"

namespace nsa::server {

absl::StatusOr<JobPtr> FindJobToProfile(const JobStore& store, const std::string& job,
                                        const std::string& only) {
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, store.Find(job, only, v1::JOB_USE_ACTIVE));
  const v1::Job& found = stored->job();
  if (found.state() == v1::Job::STATE_RUNNING && !stored->restart_decided()) return stored;
  return absl::FailedPreconditionError(
      absl::StrCat("state: job ", found.id(), " is ",
                   stored->restart_decided() ? "about to restart" : StateTitle(found),
                   " and does not train; profile it while it is training"));
}

void NoteProfiled(JobStore* store, const std::string& job_id, const ProfileBroker::Summary& summary,
                  const std::string& who) {
  if (summary.traces == 0) return;
  const auto note = [&](v1::StoredJob*, std::vector<v1::JobEvent>* events) {
    events->push_back(EventOf(
        Reason::kProfiled,
        absl::StrFormat("%s of %s recorded for %s, %d bytes%s%s", Count(summary.steps, "step"),
                        Count(summary.traces, "rank"), who, summary.bytes,
                        summary.errors.empty() ? "" : "; ", absl::StrJoin(summary.errors, "; "))));
    return absl::OkStatus();
  };
  const absl::Status noted = store->Update(job_id, note).status();
  if (!noted.ok()) spdlog::warn("job {}: {}", job_id, std::string(noted.message()));
}

}  // namespace nsa::server
