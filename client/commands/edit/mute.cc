// nsactl mute and unmute: problems of a job that somebody knows of.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/commands/edit/send_edit.h"
#include "client/connect/act_on_jobs.h"
#include "client/show/job_text.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct MuteFlags {
  JobSelection chosen;
  std::string first;  // JOB or, with --state or --label, a problem
  std::vector<std::string> problems;
};

// The problems that `nsactl mute JOB` means: all that need somebody, or all that are muted.
std::vector<std::string> Meant(const v1::Job& job, bool mute) {
  std::vector<std::string> words;
  if (!mute) {
    for (const v1::Mute& each : job.mutes()) words.push_back(each.problem());
    return words;
  }
  for (const v1::Problem& problem : job.problems()) {
    if (problem.level() > v1::JobHealth::LEVEL_HEALTHY && !problem.muted()) {
      words.push_back(problem.word());
    }
  }
  return words;
}

absl::StatusOr<v1::Job> Change(Session& session, Client* client, const MuteFlags& flags, bool mute,
                               const std::string& name) {
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(name, v1::JOB_USE_EDIT));
  const std::vector<std::string> words = flags.problems.empty() ? Meant(job, mute) : flags.problems;
  if (words.empty()) return job;
  v1::EditJobRequest request;
  (mute ? request.mutable_mute() : request.mutable_unmute())->Assign(words.begin(), words.end());
  return SendEdit(session, client, request, job.id());
}

void PrintMutes(Session& session, const v1::Job& job) {
  std::vector<std::string> words;
  for (const v1::Mute& each : job.mutes()) words.push_back(each.problem());
  const char* const until = HasEnded(job) ? "until it is resumed" : "until it ends";
  session.out() << Title(job) << ": "
                << (words.empty() ? std::string("nothing is muted")
                                  : absl::StrCat("muted ", until, ": ", absl::StrJoin(words, ", ")))
                << "\n"
                << std::flush;
}

absl::StatusOr<ExitCode> Run(Session& session, MuteFlags flags, bool mute) {
  flags.chosen.Place(flags.first, &flags.problems);
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  const Action action = {
      .command = mute ? "mute" : "unmute",
      .use = v1::JOB_USE_EDIT,
      .act = [&](const std::string& job) { return Change(session, client, flags, mute, job); },
      .print = [&](const v1::Job& job) { PrintMutes(session, job); }};
  NSA_RETURN_IF_ERROR(ActOnJobs(session, flags.chosen, action));
  return ExitCode::kOk;
}

void AddOne(Cli* cli, bool mute, const char* what, const char* more, const char* examples) {
  const auto flags = std::make_shared<MuteFlags>();
  Options options =
      cli->Add({.name = mute ? "mute" : "unmute",
                .what = what,
                .group = "Jobs",
                .more = more,
                .examples = examples,
                .run = [flags, mute](Session& session) { return Run(session, *flags, mute); }});
  options.OptionalArgument("JOB", &flags->first, "Job id or name; none with --state or --label");
  options.OptionalArguments("PROBLEM", &flags->problems,
                            "Such as DIVERGED, as `nsactl describe` names it");
  options.ChooseMatching(&flags->chosen);
}

}  // namespace

void AddMute(Cli* cli) {
  AddOne(cli, true, "Say that you know what is wrong with a job",
         "Without PROBLEM everything that is wrong with the job now is muted. A muted problem does "
         "not need anybody:\nit is not counted on the page, in `nsactl list` and in `top`, and no "
         "notice is sent of it. Other problems still\nare. It holds until the job ends; of a job "
         "that has failed, until it is resumed. Who muted what is among the\njob's events and in "
         "the audit log.",
         "nsactl mute demo\nnsactl mute demo DIVERGED\nnsactl mute --state failed --yes");
}

void AddUnmute(Cli* cli) {
  AddOne(cli, false, "Let a muted problem of a job count again",
         "Without PROBLEM nothing of the job is muted any more.",
         "nsactl unmute demo\nnsactl unmute demo DIVERGED");
}

}  // namespace nsa::client
