// nsactl logs: what a job's workers wrote.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli.h"
#include "client/connect/follow.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct LogFlags {
  std::string job;
  int rank = -1;
  int tail = 0;
  bool follow = false;
};

void PrintLines(Session& session, const v1::StreamLogsResponse& response, bool name_ranks) {
  if (session.structured()) {
    // Logs are text; proto3 JSON would write the bytes field as base64.
    session.PrintStreamed({{"rank", response.rank()}, {"data", response.data()}});
    return;
  }
  // A file or a pipe gets the bytes as they are.
  const std::string text =
      session.console().terminal ? CleanText(response.data()) : response.data();
  if (!name_ranks) {
    session.out() << text << std::flush;
    return;
  }
  const std::string prefix =
      Paint(Colour::kDim, absl::StrCat("[rank ", response.rank(), "] "), session.colours());
  absl::string_view data = text;
  if (!data.empty() && data.back() == '\n') data.remove_suffix(1);
  for (const absl::string_view line : absl::StrSplit(data, '\n')) {
    session.out() << prefix << line << "\n";
  }
  session.out() << std::flush;
}

absl::StatusOr<ExitCode> Logs(Session& session, const LogFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(flags.job));
  const bool name_ranks = flags.rank < 0 && job.spec().resources().gpus() > 1;
  v1::StreamLogsRequest request;
  request.set_job(job.id());
  request.set_rank(flags.rank);
  request.set_tail_lines(flags.tail);
  request.set_follow(flags.follow);
  const auto attempt = [&] {
    return client->Stream<v1::StreamLogsResponse>(
        request, [&](const v1::StreamLogsResponse& response) {
          PrintLines(session, response, name_ranks);
          request.set_resume_token(response.resume_token());
          return static_cast<bool>(session.out());
        });
  };
  NSA_RETURN_IF_ERROR(flags.follow ? Follow(session, job.id(), attempt) : attempt());
  return ExitCode::kOk;
}

}  // namespace

void AddLogs(Cli* cli) {
  const auto flags = std::make_shared<LogFlags>();
  Options options = cli->Add(
      {.name = "logs",
       .what = "Show what a job's workers wrote",
       .group = "Records",
       .more = "With several ranks each line begins with its rank. -f prints new output until "
               "the job has ended, also\nafter a restart of the job or the coordinator.",
       .examples = "nsactl logs demo --tail 50\n"
                   "nsactl logs demo -f\n"
                   "nsactl logs demo -f --rank 1",
       .run = [flags](Session& session) { return Logs(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Flag("-f,--follow", &flags->follow, "Keep printing until the job has ended");
  options.Rank(&flags->rank, "Only this rank (default: all)");
  options.Number("--tail", &flags->tail, {.least = 0},
                 "Only the last N lines of each rank, at most 100,000 (default: 0, all)");
}

}  // namespace nsa::client
