// nsactl stop: ends a job after a given step, after the step in progress, or at once.
#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/show/job_text.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct StopFlags {
  std::string job;
  int64_t at_step = 0;
  bool now = false;
};

absl::StatusOr<ExitCode> Stop(Session& session, const StopFlags& flags) {
  v1::StopJobRequest request;
  request.set_job(flags.job);
  v1::StopRequest& stop = *request.mutable_stop();
  stop.set_mode(v1::STOP_MODE_GRACEFUL);
  if (flags.now) stop.set_mode(v1::STOP_MODE_NOW);
  if (flags.at_step > 0) {
    stop.set_mode(v1::STOP_MODE_AT_STEP);
    stop.set_at_step(flags.at_step);
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto response, client->Call<v1::StopJobResponse>(request));
  const v1::Job& job = response.job();
  if (session.structured()) {
    session.PrintDocument(job);
    return ExitCode::kOk;
  }
  if (session.flags().format == Format::kName) {
    session.out() << job.id() << "\n";
    return ExitCode::kOk;
  }
  session.out() << Title(job) << ": " << StateName(job.state());
  if (!HasEnded(job)) {
    session.out() << ", " << StopText(job.stop()) << " (now at " << StepText(job.progress()) << ")";
  }
  session.out() << "\n";
  session.Note("Next:\n" + NextCommands(job));
  return ExitCode::kOk;
}

}  // namespace

void AddStop(Cli* cli) {
  const auto flags = std::make_shared<StopFlags>();
  Options options = cli->Add(
      {.name = "stop",
       .what = "End a job after this step, after step N, or now",
       .group = "Jobs",
       .more =
           "Without a flag the job finishes the step in progress and writes a checkpoint. A stop "
           "can only become more\nurgent: from --at-step to no flag to --now. A stopped job can "
           "be resumed.",
       .examples = "nsactl stop demo\nnsactl stop demo --at-step 5000\nnsactl stop demo --now",
       .run = [flags](Session& session) { return Stop(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  const auto at_step = options.Number("--at-step", &flags->at_step, {.least = 1},
                                      "End every rank after step N, with a checkpoint at N");
  options.Exclude(options.Flag("--now", &flags->now, "End at once, without a checkpoint"), at_step);
}

}  // namespace nsa::client
