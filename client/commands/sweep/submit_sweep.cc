#include "client/commands/sweep/submit_sweep.h"

#include <xxhash.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands/sweep/expand.h"
#include "client/connect/collect_jobs.h"
#include "client/connect/job_source.h"
#include "client/connect/resend.h"
#include "client/show/job_text.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "common/job/load.h"
#include "common/preflight/preflight.h"

namespace nsa::client {
namespace {

constexpr int kMostAttempts = 100;  // of jobs that were deleted again and again

// The same for the same job, so that a repeated submit finds it; another one for each attempt, as
// the coordinator remembers that of a deleted job. In the form of a UUID.
std::string RequestIdOf(const v1::JobSpec& spec, int attempt) {
  std::string text = ToYaml(spec);
  if (attempt > 0) absl::StrAppend(&text, "# ", attempt, "\n");
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%08x-%04x-%04x-%04x-%012x", hash.high64 >> 32,
                         (hash.high64 >> 16) & 0xffff, hash.high64 & 0xffff, hash.low64 >> 48,
                         hash.low64 & 0xffffffffffff);
}

absl::StatusOr<SweepPlan> PlanOf(const SweepFlags& flags, const v1::JobSpec& base) {
  SweepPlan plan{.name = flags.name.empty() ? base.name() : flags.name};
  for (const std::string& text : flags.axes) {
    NSA_ASSIGN_OR_RETURN(plan.axes.emplace_back(), ParseSweepAxis(text));
  }
  if (flags.draw > 0) {
    NSA_ASSIGN_OR_RETURN(plan.points,
                         DrawSweep(plan.axes, flags.draw, static_cast<uint64_t>(flags.seed)));
  } else {
    NSA_ASSIGN_OR_RETURN(plan.points, SweepGrid(plan.axes));
  }
  plan.halve_at = flags.halve_at;
  if (flags.stop_worst && plan.halve_at.empty()) {
    NSA_ASSIGN_OR_RETURN(plan.halve_at,
                         DefaultHalving(base, static_cast<int64_t>(plan.points.size())));
  }
  return plan;
}

// The folders of the jobs of this sweep that are there already. Somebody else's sweep of the same
// name has other folders.
absl::StatusOr<std::set<std::string>> Submitted(Client* client, const std::string& sweep) {
  NSA_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, CollectSweep(client, sweep));
  std::set<std::string> found;
  for (const v1::Job& job : jobs) found.insert(job.spec().train().out_dir());
  return found;
}

// `what` names the job, e.g. "job 3 of 8 (train.lr=3)".
absl::Status CheckOne(Session& session, Client* client, const v1::JobSpec& spec,
                      const std::string& what) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  NSA_ASSIGN_OR_RETURN(auto response, client->Call<v1::SubmitJobResponse>(request));
  v1::PreflightReport& report = *response.mutable_report();
  if (report.accepted()) return absl::OkStatus();
  report.clear_estimates();
  *session.console().err << FormatReport(report, what);
  return absl::InvalidArgumentError(absl::StrCat(RefusalText(what, report), "; nothing submitted"));
}

absl::StatusOr<v1::Job> SubmitOne(Session& session, Client* client, const v1::JobSpec& spec) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  for (int attempt = 0;; ++attempt) {
    request.set_request_id(RequestIdOf(spec, attempt));
    auto response = Resend(session, [&] { return client->Call<v1::SubmitJobResponse>(request); });
    if (response.ok()) return std::move(*response->mutable_job());
    const absl::Status& status = response.status();
    const bool deleted =
        absl::IsNotFound(status) && absl::StartsWith(status.message(), "request_id:");
    if (!deleted || attempt == kMostAttempts) return status;
  }
}

void Print(Session& session, const SweepPlan& plan, const v1::ListJobsResponse& jobs) {
  if (session.structured()) return session.PrintDocument(jobs);
  if (session.flags().format == Format::kName || session.flags().quiet) {
    for (const v1::Job& job : jobs.jobs()) session.out() << job.id() << "\n";
    return;
  }
  std::vector<Table::Column> columns = {{"ID"}, {"NAME"}};
  for (const SweepAxis& axis : plan.axes) columns.push_back({axis.field});
  columns.push_back({"STATE"});
  Table table(columns);
  for (int i = 0; i < jobs.jobs_size(); ++i) {
    const v1::Job& job = jobs.jobs(i);
    std::vector<Table::Cell> row = {job.id(), job.name()};
    for (const std::string& value : plan.points[i]) row.emplace_back(value);
    row.emplace_back(StateTitle(job), StateColour(job));
    table.Add(std::move(row));
  }
  session.PrintTable(table);
  std::string text = Count(jobs.jobs_size(), "job");
  if (!plan.halve_at.empty()) {
    absl::StrAppend(&text, "; the worse half stops after step ",
                    absl::StrJoin(plan.halve_at, ", then after step "));
  }
  session.Note(absl::StrCat(text, "\nNext:\n  nsactl sweep ", plan.name,
                            "   the jobs, best first\n  nsactl plot $(nsactl sweep ", plan.name,
                            " -o name | head -3)"));
}

}  // namespace

absl::StatusOr<ExitCode> SubmitSweep(Session& session, const std::string& file,
                                     const std::vector<std::string>& sets,
                                     const SweepFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const JobFile base, LoadJobSource(file, sets));
  NoteLegacyKeys(session, file, base);
  NSA_ASSIGN_OR_RETURN(const SweepPlan plan, PlanOf(flags, base.spec));
  NSA_ASSIGN_OR_RETURN(const std::vector<v1::JobSpec> specs, SweepJobs(base.spec, plan));
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto known, Submitted(client, plan.name));
  for (size_t i = 0; i < specs.size(); ++i) {
    if (known.contains(specs[i].train().out_dir())) continue;
    NSA_RETURN_IF_ERROR(CheckOne(session, client, specs[i],
                                 absl::StrFormat("job %d of %d (%s)", i + 1, specs.size(),
                                                 PointText(plan.axes, plan.points[i]))));
  }
  v1::ListJobsResponse jobs;
  for (const v1::JobSpec& spec : specs) {
    absl::StatusOr<v1::Job> job = SubmitOne(session, client, spec);
    if (!job.ok()) {
      const std::string so_far =
          absl::StrFormat("%d of %d submitted; the same command submits the others",
                          jobs.jobs_size(), specs.size());
      // Of a command that was interrupted no error is printed.
      if (absl::IsCancelled(job.status())) session.Note(so_far);
      return Annotate(job.status(), absl::StrCat(spec.name(), " (", so_far, ")"));
    }
    *jobs.add_jobs() = *std::move(job);
  }
  Print(session, plan, jobs);
  return ExitCode::kOk;
}

}  // namespace nsa::client
