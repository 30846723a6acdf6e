// nsactl note: writes a note among the events of a job.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/connect/resend.h"
#include "client/show/job_text.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct NoteFlags {
  std::string job;
  std::vector<std::string> words;
};

absl::StatusOr<ExitCode> Note(Session& session, const NoteFlags& flags) {
  v1::EditJobRequest request;
  request.set_job(flags.job);
  request.set_note(absl::StrJoin(flags.words, " "));
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto response,
                       Resend(session, [&] { return client->Call<v1::EditJobResponse>(request); }));
  if (session.PrintDocumentOrName(response.job(), response.job().id())) return ExitCode::kOk;
  session.out() << Title(response.job()) << ": noted; `nsactl events " << response.job().name()
                << "` shows it\n"
                << std::flush;
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
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Argument("TEXT", &flags->words, "The note");
}

}  // namespace nsa::client
