// nsactl resume: a stopped or failed job goes on from its newest good checkpoint.
#include "client/commands.h"
#include "client/job_text.h"
#include "client/watch.h"
#include "common/status.h"

namespace nsa {
namespace {

absl::StatusOr<ExitCode> Resume(Session& session, const std::string& name, bool watch) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->ResumeJob(name));
  if (session.structured()) {
    session.PrintDocument(ToJson(job));
  } else if (session.flags().format == Format::kName) {
    session.out() << job.id() << "\n";
  } else {
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
  CLI::App* command = cli->Add(
      {.name = "resume",
       .what = "Put a stopped or failed job back into the queue",
       .group = "Jobs",
       .more = "It continues from its newest checkpoint that verifies, with the same id.",
       .examples = "nsactl resume demo\nnsactl resume demo --watch",
       .run = [flags](Session& session) { return Resume(session, flags->job, flags->watch); }});
  command->add_option("JOB", flags->job, "Job id or name")->required();
  command->add_flag("-w,--watch", flags->watch, "Then show its progress until it ends");
}

}  // namespace nsa
