// nsactl label: shows and changes the labels of a job.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/edit/send_edit.h"
#include "client/connect/act_on_jobs.h"
#include "client/show/job_text.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct LabelFlags {
  JobSelection chosen;
  std::string first;  // JOB or, with --state or --label, a change
  std::vector<std::string> changes;
};

// Adds KEY=VALUE or KEY- to the request.
absl::Status AddChange(const std::string& change, v1::EditJobRequest* request) {
  const size_t equals = change.find('=');
  const bool removes = equals == std::string::npos && change.size() > 1 && change.back() == '-';
  if (!removes && (equals == std::string::npos || equals == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", change, "': not a change of a label; write KEY=VALUE, or KEY- to remove it"));
  }
  const std::string key = removes ? change.substr(0, change.size() - 1) : change.substr(0, equals);
  const bool known =
      request->set_labels().contains(key) ||
      std::ranges::find(request->remove_labels(), key) != request->remove_labels().end();
  if (known) {
    return absl::InvalidArgumentError(absl::StrCat("'", key, "': changed twice; write it once"));
  }
  if (removes) {
    request->add_remove_labels(key);
  } else {
    (*request->mutable_set_labels())[key] = change.substr(equals + 1);
  }
  return absl::OkStatus();
}

void PrintLabels(Session& session, const v1::Job& job) {
  const std::map<std::string, std::string> labels(job.spec().labels().begin(),
                                                  job.spec().labels().end());
  session.out() << Title(job) << (labels.empty() ? ": no labels\n" : "\n");
  for (const auto& [key, value] : labels) session.out() << "  " << key << "=" << value << "\n";
  session.out() << std::flush;
}

absl::StatusOr<ExitCode> Label(Session& session, LabelFlags flags) {
  flags.chosen.Place(flags.first, &flags.changes);
  v1::EditJobRequest request;
  for (const std::string& change : flags.changes) {
    NSA_RETURN_IF_ERROR(AddChange(change, &request));
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  if (flags.changes.empty()) {
    NSA_RETURN_IF_ERROR(CheckChosen(flags.chosen));
    if (flags.chosen.matches()) {
      return absl::InvalidArgumentError(
          "CHANGE: none (at least 1 with --state, --label or a pattern); write KEY=VALUE or KEY-");
    }
    NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.chosen.jobs.front()));
    if (!session.PrintDocumentOrName(job, job.id())) PrintLabels(session, job);
    return ExitCode::kOk;
  }
  const Action action = {
      .command = "label",
      .use = v1::JOB_USE_EDIT,
      .act = [&](const std::string& job) { return SendEdit(session, client, request, job); },
      .print = [&](const v1::Job& job) { PrintLabels(session, job); }};
  NSA_RETURN_IF_ERROR(ActOnJobs(session, flags.chosen, action));
  return ExitCode::kOk;
}

}  // namespace

void AddLabel(Cli* cli) {
  const auto flags = std::make_shared<LabelFlags>();
  Options options = cli->Add(
      {.name = "label",
       .what = "Show or change the labels of a job",
       .group = "Jobs",
       .more =
           "KEY=VALUE sets a label, KEY- removes one; without either the labels are shown. A job "
           "may be in any state,\nand its training is not touched. `nsactl list --label KEY=VALUE` "
           "finds jobs by their labels. The labels by\nwhich a sweep knows its jobs cannot be "
           "changed.",
       .examples = "nsactl label demo\n"
                   "nsactl label demo team=vision draft-\n"
                   "nsactl label 'lr-*' kept=yes\n"
                   "nsactl label --label run=7 kept=yes",
       .run = [flags](Session& session) { return Label(session, *flags); }});
  options.OptionalArgument("JOB", &flags->first,
                           "Job id or name, or a pattern of names; none with --state or --label");
  options.OptionalArguments("CHANGE", &flags->changes, "KEY=VALUE or KEY-");
  options.ChooseMatching(&flags->chosen);
}

}  // namespace nsa::client
