// nsactl resume: continues a stopped or failed job from its newest good checkpoint.
#include <string>
#include <vector>

#include "client/cli.h"
#include "client/commands/watch.h"
#include "client/connect/job_source.h"
#include "client/connect/resend.h"
#include "client/show/job_text.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct ResumeFlags {
  std::string job;
  std::vector<std::string> sets;
  bool watch = false;
};

// The job's spec with the changes of --set.
absl::StatusOr<v1::JobSpec> ChangedSpec(Client* client, const ResumeFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.job));
  v1::JobSpec spec = job.spec();
  for (const std::string& assignment : flags.sets) {
    NSA_RETURN_IF_ERROR(ApplySet(assignment, &spec).status());
  }
  return spec;
}

absl::StatusOr<ExitCode> Resume(Session& session, const ResumeFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::ResumeJobRequest request;
  request.set_job(flags.job);
  if (!flags.sets.empty()) {
    NSA_ASSIGN_OR_RETURN(*request.mutable_spec(), ChangedSpec(client, flags));
  }
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  NSA_ASSIGN_OR_RETURN(const auto response, Resend(session, [&] {
                         return client->Call<v1::ResumeJobResponse>(request);
                       }));
  const v1::Job& job = response.job();
  if (!session.PrintDocumentOrName(job, job.id())) {
    session.out() << "resumed " << Title(job) << ": " << StateName(job.state()) << " (was at "
                  << StepText(job.progress()) << ")\n";
  }
  if (flags.watch) return WatchToEnd(session, job);
  if (!session.structured()) session.Note("Next:\n" + NextCommands(job));
  return ExitCode::kOk;
}

}  // namespace

void AddResume(Cli* cli) {
  const auto flags = std::make_shared<ResumeFlags>();
  Options options = cli->Add(
      {.name = "resume",
       .what = "Put a stopped or failed job back into the queue, or train a finished one further",
       .group = "Jobs",
       .more = "The job keeps its id and continues from its newest checkpoint that verifies. --set "
               "may change train.steps,\nintervals, limits and waivers. When other steps change "
               "the learning rate in the middle of the run,\nadd --set "
               "restart.allow_new_schedule=true.",
       .examples = "nsactl resume demo\nnsactl resume demo --watch\n"
                   "nsactl resume demo --set train.steps=2000",
       .run = [flags](Session& session) { return Resume(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Texts("--set", "FIELD=VALUE", &flags->sets,
                "Change a field of the job first; may be repeated");
  options.Flag("-w,--watch", &flags->watch, "Then show its progress until it ends");
}

}  // namespace nsa::client
