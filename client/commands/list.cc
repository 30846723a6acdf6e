// nsactl list: jobs, newest first.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli.h"
#include "client/connect/collect_jobs.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "common/base/status.h"
#include "common/estimate/health.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

struct ListFlags {
  JobFilter filter;
  int limit = 100;
};

std::string Percent(const v1::JobProgress& progress) {
  if (progress.total_steps() == 0) return "-";
  return absl::StrFormat("%.0f%%", 100 * ShareDone(progress));
}

// "next start in 42 s, CUDA_OOM: …"; either part may be missing.
std::string WithNextStart(const v1::Job& job, absl::Time now, const std::string& reason) {
  const std::string next = NextStartText(job, now);
  if (next.empty()) return reason;
  return absl::StrCat("next start ", next, reason.empty() ? "" : ", ", reason);
}

constexpr int kShortReason = 60;  // columns

// Why a job that should run does not, or why it failed, or what is wrong with one that runs, or "2
// of 4 ranks" of one that runs with fewer; empty for other jobs. Shortened, because a cause may be
// a paragraph: `describe` and `-o wide` show all of it.
std::string ShortReason(const v1::Job& job, absl::Time now) {
  const auto state = job.state();
  if (const v1::Problem* const worst = WorstProblem(job);
      worst != nullptr && state == v1::Job::STATE_RUNNING) {
    return worst->cause();
  }
  if (state == v1::Job::STATE_RUNNING && HasFewerRanks(job)) {
    return absl::StrCat(RanksText(job), " ranks");
  }
  const bool waits = state == v1::Job::STATE_QUEUED || state == v1::Job::STATE_PREFLIGHT ||
                     state == v1::Job::STATE_RESTARTING || state == v1::Job::STATE_FAILED;
  if (!waits) return "";
  std::string message = job.message();
  absl::StripTrailingAsciiWhitespace(&message);
  message = message.substr(message.rfind('\n') + 1);  // the last line has the cause
  std::string reason =
      absl::StrCat(job.reason(), job.reason().empty() || message.empty() ? "" : ": ", message);
  if (DisplayWidth(reason) > kShortReason) {
    reason = Clip(reason, kShortReason - 4);
    reason = absl::StrCat(reason.substr(0, reason.rfind(' ')), " ...");  // cut between words
  }
  return WithNextStart(job, now, reason);
}

std::vector<Table::Cell> Row(const v1::Job& job, absl::Time now, bool wide, bool reasons) {
  const v1::JobProgress& progress = job.progress();
  const bool running = job.state() == v1::Job::STATE_RUNNING;
  std::vector<Table::Cell> row = {job.id(),
                                  job.name(),
                                  {StateTitle(job), StateColour(job)},
                                  StepText(progress),
                                  Percent(progress),
                                  HumanLoss(progress.loss()),
                                  running ? HumanCount(progress.tokens_per_second()) : "-",
                                  running ? HumanDuration(progress.eta_seconds()) : "-",
                                  HumanAge(now, job.submit_unix_nanos())};
  if (wide) {
    row.emplace_back(HumanLoss(progress.val_loss()));
    row.emplace_back(progress.checkpoint_step() == 0 ? "-"
                                                     : absl::StrCat(progress.checkpoint_step()));
    row.emplace_back(absl::StrCat(job.restarts()));
    row.emplace_back(RanksText(job));
    row.emplace_back(absl::StrCat(job.spec().priority()));
    row.emplace_back(WithNextStart(job, now, ReasonText(job)));
  } else if (reasons) {
    row.emplace_back(ShortReason(job, now));
  }
  return row;
}

void PrintJobs(Session& session, const v1::ListJobsResponse& jobs) {
  std::vector<Table::Column> columns = {{"ID"},          {"NAME"},          {"STATE"},
                                        {"STEP", true},  {"DONE", true},    {"LOSS", true},
                                        {"TOK/S", true}, {"ENDS IN", true}, {"SUBMITTED", true}};
  if (session.wide()) {
    columns.insert(columns.end(), {{"VAL LOSS", true},
                                   {"CHECKPOINT", true},
                                   {"RESTARTS", true},
                                   {"RANKS", true},
                                   {"PRIORITY", true},
                                   {"REASON"}});
  }
  const bool reasons = std::ranges::any_of(
      jobs.jobs(), [&](const v1::Job& job) { return !ShortReason(job, session.now()).empty(); });
  if (reasons && !session.wide()) columns.push_back({"REASON"});
  Table table(columns);
  for (const v1::Job& job : jobs.jobs()) {
    table.Add(Row(job, session.now(), session.wide(), reasons));
  }
  session.PrintTable(table);
}

absl::StatusOr<ExitCode> List(Session& session, const ListFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsRequest request, RequestOf(flags.filter));
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, CollectJobs(client, request, flags.limit));
  if (session.structured()) {
    session.PrintDocument(jobs);
  } else if (session.flags().format == Format::kName) {
    for (const v1::Job& job : jobs.jobs()) session.out() << job.id() << "\n";
  } else if (jobs.jobs().empty()) {
    session.Note(flags.filter.empty() ? "no jobs yet; submit one with `nsactl submit FILE`"
                                      : "no jobs in these states or with these labels");
  } else {
    PrintJobs(session, jobs);
  }
  if (!jobs.next_page_token().empty()) {
    session.Note(absl::StrCat("only the newest ", flags.limit, "; --limit 0 shows all"));
  }
  return ExitCode::kOk;
}

}  // namespace

void AddList(Cli* cli) {
  const auto flags = std::make_shared<ListFlags>();
  Options options =
      cli->Add({.name = "list",
                .what = "List jobs, newest first",
                .group = "Jobs",
                .examples = "nsactl list\n"
                            "nsactl list --state active -o wide\n"
                            "nsactl list --label team=vision --label run=7\n"
                            "nsactl list --state failed,stopped -o json | jq -r '.jobs[].id'",
                .run = [flags](Session& session) { return List(session, *flags); }});
  options.Choose(&flags->filter);
  options.Number("--limit", &flags->limit, {.least = 0, .most = 1000000},
                 "Show at most N jobs (default: 100; 0: all)");
}

}  // namespace nsa::client
