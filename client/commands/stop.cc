// nsactl stop: ends jobs after a given step, after the step in progress, or at once.
#include "client/cli.h"
#include "client/connect/act_on_jobs.h"
#include "client/show/job_text.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

struct StopFlags {
  JobSelection chosen;
  int64_t at_step = 0;
  bool now = false;
};

v1::StopRequest RequestOf(const StopFlags& flags) {
  v1::StopRequest stop;
  stop.set_mode(flags.now ? v1::STOP_MODE_NOW : v1::STOP_MODE_GRACEFUL);
  if (flags.at_step > 0) {
    stop.set_mode(v1::STOP_MODE_AT_STEP);
    stop.set_at_step(flags.at_step);
  }
  return stop;
}

void PrintStopped(Session& session, const v1::Job& job) {
  session.out() << Title(job) << ": ";
  if (HasEnded(job)) {
    session.out() << StateTitle(job);
  } else {
    session.out() << StopText(job.stop()) << " (now at " << StepText(job.progress()) << ")";
  }
  session.out() << "\n" << std::flush;
}

absl::StatusOr<ExitCode> Stop(Session& session, const StopFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::StopJobRequest request;
  *request.mutable_stop() = RequestOf(flags);
  const bool several = flags.chosen.several();
  const Action action = {.command = "stop",
                         .use = v1::JOB_USE_ACTIVE,
                         .act = [&](const std::string& name) -> absl::StatusOr<v1::Job> {
                           request.set_job(name);
                           NSA_ASSIGN_OR_RETURN(const auto response,
                                                client->Call<v1::StopJobResponse>(request));
                           return response.job();
                         },
                         .print =
                             [&](const v1::Job& job) {
                               PrintStopped(session, job);
                               if (!several) session.Note("Next:\n" + NextCommands(job));
                             }};
  NSA_RETURN_IF_ERROR(ActOnJobs(session, flags.chosen, action));
  return ExitCode::kOk;
}

}  // namespace

void AddStop(Cli* cli) {
  const auto flags = std::make_shared<StopFlags>();
  Options options = cli->Add(
      {.name = "stop",
       .what = "End jobs after this step, after step N, or now",
       .group = "Jobs",
       .more =
           "Without a flag a job finishes the step in progress and writes a checkpoint. A stop "
           "may become more\nurgent, from --at-step to no flag to --now, but not less; until its "
           "step is done, --at-step may name another\nstep, also a later one. A stopped job can "
           "be resumed. With several JOBs each one that\ncan be stopped is stopped; the exit code "
           "is not 0 if one could not be.",
       .examples = "nsactl stop demo\n"
                   "nsactl stop demo --at-step 5000\n"
                   "nsactl stop demo --now\n"
                   "nsactl stop 'lr-*'\n"
                   "nsactl stop --label team=vision --state waiting --yes",
       .run = [flags](Session& session) { return Stop(session, *flags); }});
  options.ChooseToActOn(&flags->chosen);
  const auto at_step = options.Number("--at-step", &flags->at_step, {.least = 1},
                                      "End every rank after step N, with a checkpoint at N");
  options.Exclude(options.Flag("--now", &flags->now, "End at once, without a checkpoint"), at_step);
}

}  // namespace nsa::client
