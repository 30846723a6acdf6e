// nsactl delete: deletes the records of jobs that have ended.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/connect/act_on_jobs.h"
#include "client/connect/resend.h"
#include "client/show/job_text.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

// The named jobs, each once. All are checked before the first is deleted, so a mistake in the last
// name deletes nothing.
absl::StatusOr<std::vector<v1::Job>> FindEnded(Client* client,
                                               const std::vector<std::string>& names) {
  std::vector<v1::Job> jobs;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    NSA_ASSIGN_OR_RETURN(v1::Job job, client->GetJob(name, v1::JOB_USE_ENDED));
    if (!HasEnded(job.state())) {
      return absl::FailedPreconditionError(
          absl::StrCat("state: job ", Title(job), " is ", StateTitle(job),
                       " and can be deleted only when it has ended; end it with `nsactl stop ",
                       job.id(), "`, then delete it"));
    }
    if (seen.insert(job.id()).second) jobs.push_back(std::move(job));
  }
  return jobs;
}

absl::Status ConfirmDelete(Session& session, const std::vector<v1::Job>& jobs) {
  return Confirm(
      session, "delete", jobs,
      absl::StrCat("Delete the records, events, metrics and logs of ",
                   jobs.size() == 1 ? "this job" : Count(static_cast<int64_t>(jobs.size()), "job"),
                   " for good? Every out_dir stays, with its checkpoints."));
}

absl::StatusOr<std::vector<v1::Job>> JobsToDelete(Session& session, Client* client,
                                                  const JobSelection& chosen) {
  NSA_RETURN_IF_ERROR(CheckChosen(chosen));
  if (!chosen.matches()) return FindEnded(client, chosen.jobs);
  return MatchingJobs(session, "delete", chosen, v1::JOB_USE_ENDED);
}

absl::Status DeleteOne(Session& session, Client* client, const v1::Job& job) {
  v1::DeleteJobRequest request;
  request.set_job(job.id());
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  NSA_RETURN_IF_ERROR(
      Resend(session, [&] { return client->Call<v1::DeleteJobResponse>(request); }).status());
  if (session.structured()) return absl::OkStatus();
  if (session.flags().format == Format::kName) {
    session.out() << job.id() << "\n";
  } else {
    session.out() << "deleted " << Title(job) << "; " << job.spec().train().out_dir()
                  << " stays, with its checkpoints, and another job may use it\n";
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> Delete(Session& session, const JobSelection& chosen) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, JobsToDelete(session, client, chosen));
  if (!chosen.yes && !jobs.empty()) {
    const absl::Status confirmed = ConfirmDelete(session, jobs);
    if (absl::IsCancelled(confirmed)) session.Note("nothing deleted");
    NSA_RETURN_IF_ERROR(confirmed);
  }
  nlohmann::ordered_json deleted = nlohmann::ordered_json::array();
  absl::Status status;
  for (const v1::Job& job : jobs) {
    status = DeleteOne(session, client, job);
    if (!status.ok()) break;
    deleted.push_back(job.id());
  }
  if (session.structured()) session.PrintDocument({{"job_ids", std::move(deleted)}});
  NSA_RETURN_IF_ERROR(status);
  return ExitCode::kOk;
}

}  // namespace

void AddDelete(Cli* cli) {
  const auto flags = std::make_shared<JobSelection>();
  Options options = cli->Add(
      {.name = "delete",
       .what = "Delete the records of jobs that have ended",
       .group = "Jobs",
       .more =
           "The coordinator deletes the job's record, events, step records, metrics and the log it "
           "keeps, for good.\nThe job's out_dir stays as it is, with checkpoints and "
           "telemetry files; remove it by hand when it is not needed.\nA job that has not "
           "ended is refused (exit code 6): stop it first. Nothing is deleted unless every "
           "JOB can be.\nOn a terminal the command asks first; any answer but yes gives exit code "
           "130. Without a terminal --yes is\nneeded. The coordinator's setting "
           "job_retention_days deletes jobs that ended long ago in the same way.",
       .examples = "nsactl delete demo\n"
                   "nsactl delete jqx2m4k7c3zap jw5d6y3tn2hbe --yes\n"
                   "nsactl delete 'lr-*' --state failed\n"
                   "nsactl delete --state failed --label team=vision",
       .run = [flags](Session& session) { return Delete(session, *flags); }});
  options.ChooseToActOn(flags.get());
}

}  // namespace nsa::client
