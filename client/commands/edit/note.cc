// nsactl note: writes a note among the events of a job.
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

struct NoteFlags {
  JobSelection chosen;
  std::string first;  // JOB or, with --state or --label, a word of the note
  std::vector<std::string> words;
};

void PrintNoted(Session& session, const v1::Job& job) {
  session.out() << Title(job) << ": noted; `nsactl events " << job.id() << "` shows it\n"
                << std::flush;
}

absl::StatusOr<ExitCode> Note(Session& session, NoteFlags flags) {
  flags.chosen.Place(flags.first, &flags.words);
  NSA_RETURN_IF_ERROR(CheckChosen(flags.chosen));
  if (!flags.chosen.filter.empty() && flags.words.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TEXT: '", flags.words.front(), "' and ", flags.words.size() - 1,
        " more (one with --state or --label); quote the note, and name no job beside them"));
  }
  if (flags.words.empty()) return absl::InvalidArgumentError("TEXT: none; write the note");
  v1::EditJobRequest request;
  request.set_note(absl::StrJoin(flags.words, " "));
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  const Action action = {
      .command = "note",
      .use = v1::JOB_USE_EDIT,
      .act = [&](const std::string& job) { return SendEdit(session, client, request, job); },
      .print = [&](const v1::Job& job) { PrintNoted(session, job); }};
  NSA_RETURN_IF_ERROR(ActOnJobs(session, flags.chosen, action));
  return ExitCode::kOk;
}

}  // namespace

void AddNote(Cli* cli) {
  const auto flags = std::make_shared<NoteFlags>();
  Options options =
      cli->Add({.name = "note",
                .what = "Write a note among the events of a job",
                .group = "Jobs",
                .more = "What you changed, tried or saw, in at most 1,000 bytes. It stays among "
                        "the job's events with your name and the\ntime: `nsactl events` and "
                        "`nsactl report` show it, and the page marks it in the curves.",
                .examples = "nsactl note demo \"loss spike at 1,200: learning rate too high?\"",
                .run = [flags](Session& session) { return Note(session, *flags); }});
  options.OptionalArgument("JOB", &flags->first, "Job id or name; none with --state or --label");
  options.OptionalArguments("TEXT", &flags->words, "The note");
  options.ChooseMatching(&flags->chosen);
}

}  // namespace nsa::client
