// nsactl resume: continues a stopped or failed job from its newest good checkpoint.
#include "client/cli.h"
#include "client/commands/watch.h"
#include "client/connect/resend.h"
#include "client/show/job_text.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

absl::StatusOr<ExitCode> Resume(Session& session, const std::string& name, bool watch) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::ResumeJobRequest request;
  request.set_job(name);
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  NSA_ASSIGN_OR_RETURN(const auto response, Resend(session, [&] {
                         return client->Call<v1::ResumeJobResponse>(request);
                       }));
  const v1::Job& job = response.job();
  if (!session.PrintDocumentOrName(job, job.id())) {
    session.out() << "resumed " << Title(job) << ": " << StateName(job.state()) << " (was at "
                  << StepText(job.progress()) << ")\n";
  }
  if (watch) return WatchToEnd(session, job);
  if (!session.structured()) session.Note("Next:\n" + NextCommands(job));
  return ExitCode::kOk;
}

}  // namespace

void AddResume(Cli* cli) {
  struct Flags {
    std::string job;
    bool watch = false;
  };
  const auto flags = std::make_shared<Flags>();
  Options options = cli->Add(
      {.name = "resume",
       .what = "Put a stopped or failed job back into the queue",
       .group = "Jobs",
       .more = "The job keeps its id and continues from its newest checkpoint that verifies.",
       .examples = "nsactl resume demo\nnsactl resume demo --watch",
       .run = [flags](Session& session) { return Resume(session, flags->job, flags->watch); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Flag("-w,--watch", &flags->watch, "Then show its progress until it ends");
}

}  // namespace nsa::client
