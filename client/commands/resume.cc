// nsactl resume: continues a stopped or failed job from its newest good checkpoint.
#include <string>
#include <vector>

#include "client/cli.h"
#include "client/commands/watch.h"
#include "client/connect/act_on_jobs.h"
#include "client/connect/job_source.h"
#include "client/connect/resend.h"
#include "client/show/job_text.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "common/rpc/rpc.h"

namespace nsa::client {
namespace {

struct ResumeFlags {
  JobSelection chosen;
  std::vector<std::string> sets;
  bool watch = false;
};

// The job's spec with the changes of --set. Of its labels only those that change: another may be
// set by somebody else meanwhile.
absl::StatusOr<v1::JobSpec> ChangedSpec(const v1::Job& job, const std::vector<std::string>& sets) {
  v1::JobSpec spec = job.spec();
  NSA_RETURN_IF_ERROR(ApplySets(sets, &spec));
  for (const auto& [key, value] : job.spec().labels()) {
    const auto same = spec.labels().find(key);
    if (same != spec.labels().end() && same->second == value) spec.mutable_labels()->erase(key);
  }
  return spec;
}

v1::JobUse UseOf(const ResumeFlags& flags) {
  return flags.sets.empty() ? v1::JOB_USE_RESUMABLE : v1::JOB_USE_ENDED;
}

absl::StatusOr<v1::Job> ResumeOne(Session& session, Client* client, const ResumeFlags& flags,
                                  const std::string& name) {
  // Looked up once: when the request is sent again, the name may mean another job.
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(name, UseOf(flags), {.raw = true}));
  v1::ResumeJobRequest request;
  request.set_job(job.id());
  if (!flags.sets.empty()) {
    NSA_ASSIGN_OR_RETURN(*request.mutable_spec(), ChangedSpec(job, flags.sets));
  }
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  ErrorDetails details;
  const absl::StatusOr<v1::ResumeJobResponse> response = Resend(
      session, [&] { return client->Call<v1::ResumeJobResponse>(request, {.details = &details}); });
  if (!response.ok()) return WithViolations(response.status(), details);
  return response->job();
}

absl::StatusOr<ExitCode> Resume(Session& session, const ResumeFlags& flags) {
  const bool several = flags.chosen.several();
  if (flags.watch && several) {
    return absl::InvalidArgumentError("--watch: several jobs (at most 1); name one job");
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::Job resumed;
  const Action action = {.command = "resume",
                         .use = UseOf(flags),
                         .act = [&](const std::string& name) -> absl::StatusOr<v1::Job> {
                           NSA_ASSIGN_OR_RETURN(resumed, ResumeOne(session, client, flags, name));
                           return resumed;
                         },
                         .print =
                             [&](const v1::Job& job) {
                               session.out() << "resumed " << Title(job) << ": " << StateTitle(job)
                                             << " (was at " << StepText(job.progress()) << ")\n";
                             },
                         .streamed = flags.watch};
  NSA_RETURN_IF_ERROR(ActOnJobs(session, flags.chosen, action));
  if (flags.watch) return WatchToEnd(session, resumed);
  if (!several && !session.structured()) session.Note("Next:\n" + NextCommands(resumed));
  return ExitCode::kOk;
}

}  // namespace

void AddResume(Cli* cli) {
  const auto flags = std::make_shared<ResumeFlags>();
  Options options = cli->Add(
      {.name = "resume",
       .what = "Put stopped or failed jobs back into the queue, or train finished ones further",
       .group = "Jobs",
       .more = "The job keeps its id and continues from its newest checkpoint that verifies. --set "
               "may change train.steps,\nintervals, limits and waivers. When other steps change "
               "the learning rate in the middle of the run,\nadd --set "
               "restart.allow_new_schedule=true.",
       .examples = "nsactl resume demo\nnsactl resume demo --watch\n"
                   "nsactl resume demo --set train.steps=2000\n"
                   "nsactl resume --state failed --label team=vision",
       .run = [flags](Session& session) { return Resume(session, *flags); }});
  options.ChooseToActOn(&flags->chosen);
  options.Texts("--set", "FIELD=VALUE", &flags->sets,
                "Change a field of the job first; may be repeated");
  options.Flag("-w,--watch", &flags->watch, "Then show its progress until it ends");
}

}  // namespace nsa::client
