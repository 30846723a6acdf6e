// nsactl report: everything about a job in one HTML file.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/view/read_history.h"
#include "client/connect/local/local_worker.h"
#include "client/connect/local/output_file.h"
#include "client/show/job_text.h"
#include "client/show/report_page.h"
#include "common/base/status.h"
#include "common/job/load.h"

namespace nsa::client {
namespace {

struct ReportFlags {
  std::string job;
  std::string file;
  std::vector<std::string> prompts;
};

// True for an answer that a report can do without: an older coordinator lacks the method, the
// token may not call it, a folder cannot be read.
bool MayLack(const absl::Status& status) {
  return !absl::IsCancelled(status) && !NoAnswer(status) && !absl::IsUnauthenticated(status);
}

absl::Status ReadEvents(Client* client, Report* report) {
  v1::WatchEventsRequest request;
  request.set_job(report->job.id());
  return client->Stream<v1::WatchEventsResponse>(request,
                                                 [report](const v1::WatchEventsResponse& response) {
                                                   report->events.push_back(response.event());
                                                   return true;
                                                 });
}

absl::Status ReadCheckpoints(Client* client, Report* report) {
  v1::ListCheckpointsRequest request;
  request.set_job(report->job.id());
  do {
    const auto page = client->Call<v1::ListCheckpointsResponse>(request);
    if (!page.ok()) {
      report->checkpoints_problem = std::string(page.status().message());
      return MayLack(page.status()) ? absl::OkStatus() : page.status();
    }
    report->checkpoints.insert(report->checkpoints.end(), page->checkpoints().begin(),
                               page->checkpoints().end());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

absl::Status ReadStacks(Client* client, Report* report) {
  v1::ListSavedStacksRequest request;
  request.set_job(report->job.id());
  const auto saved = client->Call<v1::ListSavedStacksResponse>(request);
  if (!saved.ok()) return MayLack(saved.status()) ? absl::OkStatus() : saved.status();
  report->stacks.assign(saved->saved().begin(), saved->saved().end());
  return absl::OkStatus();
}

// The machines of the job's ranks.
absl::Status ReadNodes(Client* client, Report* report) {
  v1::ListNodesRequest request;
  do {
    const auto page = client->Call<v1::ListNodesResponse>(request);
    if (!page.ok()) return MayLack(page.status()) ? absl::OkStatus() : page.status();
    for (const v1::Node& node : page->nodes()) {
      const bool used = std::ranges::any_of(report->job.ranks(), [&](const v1::RankStatus& rank) {
        return rank.node() == node.info().name();
      });
      if (used) report->nodes.push_back(node);
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

// The newest checkpoint that can be read; empty without one.
std::string NewestCheckpoint(const Report& report) {
  for (auto one = report.checkpoints.rbegin(); one != report.checkpoints.rend(); ++one) {
    if (one->error().empty()) return one->path();
  }
  return "";
}

// Lets the newest checkpoint continue the prompts, on this machine.
absl::Status WriteSamples(Session& session, const std::vector<std::string>& prompts,
                          Report* report) {
  if (prompts.empty()) return absl::OkStatus();
  report->sampled_from = NewestCheckpoint(*report);
  if (report->sampled_from.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--prompt: ", Title(report->job), " has no checkpoint; leave --prompt out"));
  }
  if (std::error_code error; !std::filesystem::exists(report->sampled_from, error)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--prompt: ", report->sampled_from,
        " is not on this machine; make the report where it is, or leave --prompt out"));
  }
  for (const std::string& prompt : prompts) {
    NSA_ASSIGN_OR_RETURN(const std::string text,
                         RunWorker(WorkerBesideThisProgram(),
                                   {"sample", report->sampled_from, "--prompt", prompt, "--bytes",
                                    "400", "--temperature", "0.8", "--seed", "1"},
                                   &session.interrupt()));
    report->samples.push_back({prompt, std::string(absl::StripAsciiWhitespace(text))});
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> MakeReport(Session& session, const ReportFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  Report report;
  NSA_ASSIGN_OR_RETURN(report.job, client->GetJob(flags.job));
  v1::GetCurvesRequest request = CurvesRequest(report.job.id(), NamesShown());
  request.set_marks(true);
  NSA_ASSIGN_OR_RETURN(v1::GetCurvesResponse curves, client->Call<v1::GetCurvesResponse>(request));
  report.curves = JobCurves(std::move(curves));
  report.configuration = ToYaml(report.job.spec());
  report.now = session.now();
  NSA_RETURN_IF_ERROR(ReadEvents(client, &report));
  NSA_RETURN_IF_ERROR(ReadCheckpoints(client, &report));
  NSA_RETURN_IF_ERROR(ReadStacks(client, &report));
  NSA_RETURN_IF_ERROR(ReadNodes(client, &report));
  NSA_ASSIGN_OR_RETURN(report.version,
                       client->Call<v1::GetVersionResponse>(v1::GetVersionRequest()));
  NSA_RETURN_IF_ERROR(WriteSamples(session, flags.prompts, &report));
  const std::string file = flags.file.empty() ? absl::StrCat(report.job.id(), ".html") : flags.file;
  NSA_RETURN_IF_ERROR(WriteOutputFile(file, ReportPage(report)));
  session.Note(absl::StrCat("report of ", Title(report.job), " written to ", file));
  return ExitCode::kOk;
}

}  // namespace

void AddReport(Cli* cli) {
  const auto flags = std::make_shared<ReportFlags>();
  Options options = cli->Add(
      {.name = "report",
       .what = "Write everything about a job into one HTML file",
       .group = "Records",
       .more = "The file has figures, curves, faults, preflight, environment, checkpoints, events "
               "and the configuration. It needs\nno network and no script, so it can be sent and "
               "kept. --prompt, which may be repeated, lets the newest checkpoint\ncontinue a text "
               "on this machine's CPU.",
       .examples = "nsactl report demo\n"
                   "nsactl report demo -o demo.html\n"
                   "nsactl report demo -o demo.html --prompt 'The cell' --prompt 'In 1990'",
       .run = [flags](Session& session) { return MakeReport(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Text("-o,--file", "FILE", &flags->file,
               "The file (default: JOB.html, with the job's id)");
  options.Texts("--prompt", "TEXT", &flags->prompts, "Add a sample that continues this text");
}

}  // namespace nsa::client
