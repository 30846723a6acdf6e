// nsactl submit: checks a job file and queues it as a job.
#include "client/commands/submit.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli.h"
#include "client/commands/sweep/submit_sweep.h"
#include "client/commands/watch.h"
#include "client/connect/canary.h"
#include "client/connect/job_source.h"
#include "client/connect/resend.h"
#include "client/show/job_text.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "common/preflight/preflight.h"
#include "common/rpc/rpc.h"

namespace nsa::client {
namespace {

// The estimates that submit prints; `validate` prints all of them.
constexpr std::array<absl::string_view, 6> kEstimates = {
    "parameters",        "memory per rank",        "disk for checkpoints",
    "tokens in the run", "tokens left in the run", "expected time"};

struct SubmitFlags {
  std::string file;
  std::string request_id;
  std::vector<std::string> sets;
  std::vector<std::string> after;
  bool watch = false;
  bool canary = false;
  int64_t canary_steps = 0;  // 0: kCanarySteps
  SweepFlags sweep;
};

constexpr int64_t kCanarySteps = 20;

// Prints every finding of a refused job. It asks for the whole report, because the details of an
// error hold only what fits into 6 KB.
absl::Status ExplainRefusal(Session& session, Client* client, const std::string& name,
                            const JobFile& job, const absl::Status& refusal,
                            const ErrorDetails& details) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = job.spec;
  request.set_validate_only(true);
  absl::StatusOr<v1::SubmitJobResponse> response = client->Call<v1::SubmitJobResponse>(request);
  if (response.ok() && !response->report().accepted()) {
    v1::PreflightReport& report = *response->mutable_report();
    AddPlaces(job.source.places, &report);
    if (session.structured()) session.PrintDocument(*response);
    report.clear_estimates();  // the job will not run; `validate` shows them
    *session.console().err << FormatReport(report, ShownName(name));
    return absl::InvalidArgumentError(RefusalText(name, report));
  }
  return WithViolations(absl::InvalidArgumentError(refusal.message()), details);
}

// What the coordinator says of a field, said of the flag that gave its value.
absl::Status AboutFlag(const absl::Status& status, const std::string& field,
                       const std::string& flag) {
  absl::string_view rest = status.message();
  if (!absl::ConsumePrefix(&rest, field + ": ")) return status;
  return WithMessage(status, absl::StrCat(flag, ": ", rest));
}

std::string_view FindingWord(const v1::Finding& finding) {
  if (!finding.waived().empty()) return "waived";
  return finding.severity() == v1::SEVERITY_WARNING ? "warning" : "note";
}

void PrintAccepted(Session& session, const v1::SubmitJobResponse& response) {
  const v1::Job& job = response.job();
  std::ostream& out = session.out();
  if (session.flags().format == Format::kName || session.flags().quiet) {
    out << job.id() << "\n" << std::flush;
    return;
  }
  out << "submitted " << Title(job) << ": " << StateTitle(job) << "\n";
  if (!response.report().start().empty()) out << "  " << response.report().start() << "\n";
  // The job was accepted, so the findings are waived errors, warnings and notes.
  for (const v1::Finding& finding : response.report().findings()) {
    out << "  " << FindingWord(finding) << " " << finding.rule() << ": " << finding.field() << ": "
        << finding.problem();
    if (!finding.waived().empty()) {
      out << " (waived: " << finding.waived() << ")";
    } else if (!finding.fix().empty()) {
      out << "; " << finding.fix();
    }
    out << "\n";
  }
  std::vector<std::string> estimates;
  for (const v1::EstimateItem& item : response.report().estimates()) {
    if (std::count(kEstimates.begin(), kEstimates.end(), item.name()) == 0) continue;
    estimates.push_back(EstimateText(item));
  }
  if (!estimates.empty()) out << "  estimate: " << absl::StrJoin(estimates, ", ") << "\n";
  out << std::flush;
}

// Runs the first steps of the job and prints what they cost. InvalidArgument when they are slower
// than the job allows.
absl::Status TryFirst(Session& session, const SubmitFlags& flags, const v1::JobSpec& spec) {
  const int64_t steps = flags.canary_steps > 0 ? flags.canary_steps : kCanarySteps;
  NSA_ASSIGN_OR_RETURN(const CanaryResult result, RunCanary(session, spec, steps));
  session.Note("canary: " + CanaryText(result, spec));
  return CheckCanary(result, spec);
}

// The flags of a sweep without --sweep, and those that are about one job with it.
absl::Status CheckSweepFlags(const SubmitFlags& flags) {
  const SweepFlags& sweep = flags.sweep;
  if (sweep.axes.empty()) {
    const bool unused =
        !sweep.name.empty() || sweep.draw > 0 || sweep.stop_worst || !sweep.halve_at.empty();
    if (!unused) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--sweep-name, --draw, --stop-worst and --halve-at belong to a sweep; add --sweep "
        "FIELD=VALUES");
  }
  if (!flags.watch && !flags.canary && flags.request_id.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--watch, --canary and --request-id are about one job; leave them out with --sweep, and "
      "look at the jobs with `nsactl sweep NAME` or `nsactl top`");
}

absl::Status CheckAfter(const std::vector<std::string>& after) {
  for (const std::string& job : after) {
    if (limits::IsPlainName(job, limits::kJobNameBytes)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--after: '", job, "' (the id or name of a job); see `nsactl list`"));
  }
  return absl::OkStatus();
}

// --set, and --after as one of them.
std::vector<std::string> SetsOf(const SubmitFlags& flags) {
  std::vector<std::string> sets = flags.sets;
  if (!flags.after.empty()) {
    sets.push_back(absl::StrCat("after=[", absl::StrJoin(flags.after, ","), "]"));
  }
  return sets;
}

// Main path 1/7: submit.
absl::StatusOr<ExitCode> Submit(Session& session, const SubmitFlags& flags) {
  NSA_RETURN_IF_ERROR(CheckSweepFlags(flags));
  NSA_RETURN_IF_ERROR(CheckAfter(flags.after));
  const std::vector<std::string> sets = SetsOf(flags);
  if (!flags.sweep.axes.empty()) return SubmitSweep(session, flags.file, sets, flags.sweep);
  NSA_ASSIGN_OR_RETURN(const JobFile job, LoadJobSource(flags.file, sets));
  NoteLegacyKeys(session, flags.file, job);
  if (flags.canary) {
    NSA_ASSIGN_OR_RETURN(Client * client, session.client());
    v1::SubmitJobRequest check;
    *check.mutable_spec() = job.spec;
    check.set_validate_only(true);
    NSA_ASSIGN_OR_RETURN(const auto checked, client->Call<v1::SubmitJobResponse>(check));
    if (!checked.report().accepted()) {
      return ExplainRefusal(session, client, flags.file, job, absl::InvalidArgumentError("refused"),
                            {});
    }
    NSA_RETURN_IF_ERROR(TryFirst(session, flags, job.spec));
  }
  return SendJob(session, job,
                 {.name = flags.file, .request_id = flags.request_id, .watch = flags.watch});
}

}  // namespace

absl::StatusOr<v1::SubmitJobResponse> Send(Session& session, const JobFile& job,
                                           const SendOptions& options) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = job.spec;
  request.set_request_id(options.request_id);
  if (options.request_id.empty()) {
    NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  ErrorDetails details;
  auto response = Resend(
      session, [&] { return client->Call<v1::SubmitJobResponse>(request, {.details = &details}); });
  if (!absl::IsInvalidArgument(response.status())) {
    if (response.ok() || options.request_id.empty()) return response;
    return AboutFlag(response.status(), "request_id", "--request-id");
  }
  return ExplainRefusal(session, client, options.name, job, response.status(), details);
}

absl::StatusOr<ExitCode> SendJob(Session& session, const JobFile& job, const SendOptions& options) {
  NSA_ASSIGN_OR_RETURN(const v1::SubmitJobResponse response, Send(session, job, options));
  if (session.structured() && options.watch) {
    session.PrintStreamed(response);
  } else if (session.structured()) {
    session.PrintDocument(response);
  } else {
    PrintAccepted(session, response);
  }
  if (options.watch) return WatchToEnd(session, response.job());
  if (!session.structured()) session.Note("Next:\n" + NextCommands(response.job()));
  return ExitCode::kOk;
}

void AddSubmit(Cli* cli) {
  const auto flags = std::make_shared<SubmitFlags>();
  Options options = cli->Add(
      {.name = "submit",
       .what = "Check a job file and queue it",
       .group = "Jobs",
       .more = "Relative paths in the file start at the current directory; the data paths in a job "
               "file that `data prepare`\nwrote start at its folder. When the file has mistakes or "
               "preflight refuses the job, every finding is printed\nwith its line and the exit "
               "code is 2. With --watch the exit code is 1 when the job fails; Ctrl-C leaves the\n"
               "job running.",
       .examples = "nsactl submit job.yaml\n"
                   "nsactl submit job.yaml --watch\n"
                   "nsactl submit job.yaml --canary\n"
                   "nsactl submit train.yaml --after prep --set not_before=+2h\n"
                   "nsactl submit job.yaml --set train.steps=100 --set data.path=[a.txt,b.txt]\n"
                   "nsactl submit job.yaml --sweep train.lr=1e-4,3e-4,6e-4 --sweep "
                   "nsa.gate=softmax,sigmoid --stop-worst\n"
                   "nsactl submit job.yaml --sweep train.lr=1e-4..1e-2 --draw 8\n"
                   "sed s/0.001/0.0003/ job.yaml | nsactl submit - --set name=low-lr\n"
                   "id=$(nsactl submit -q job.yaml)",
       .run = [flags](Session& session) { return Submit(session, *flags); }});
  options.Argument("FILE", &flags->file, "Job file; - reads standard input");
  options.Flag("-w,--watch", &flags->watch, "Then show its progress until it ends");
  options.OptionalNumber(
      "--canary", "[N]", &flags->canary, &flags->canary_steps,
      "First run N steps of the job (default: 20) in a folder of their own, show "
      "speed, memory and the expected end, and do not submit the job if it is "
      "slower than guard.min_tokens_per_second");
  options.Texts("--set", "FIELD=VALUE", &flags->sets,
                "Change a field of the file; may be repeated");
  options.List("--after", "JOB,...", &flags->after,
               "Wait in the queue until these jobs are finished, whatever `after` the file has");
  SweepFlags& sweep = flags->sweep;
  options.Texts("--sweep", "FIELD=VALUES", &sweep.axes,
                "Submit one job for each value (1e-4,3e-4); may be repeated, then one for each "
                "combination. LOW..HIGH is a range for --draw");
  options.Text("--sweep-name", "NAME", &sweep.name,
               "Name of the sweep (default: the job's); its jobs are NAME-1, NAME-2, …");
  options.Number("--draw", &sweep.draw, {.least = 2, .most = 1000},
                 "Draw N jobs at random instead of all combinations");
  options.Number("--draw-seed", &sweep.seed, {}, "Seed of --draw (default: 1)");
  options.Flag(
      "--stop-worst", &sweep.stop_worst,
      "Successive halving by validation loss: the worse half of the jobs stops after 1/2^k "
      "of the steps, …, 1/4 and 1/2");
  options.Numbers("--halve-at", "STEP,...", &sweep.halve_at, {.least = 1},
                  "The steps for --stop-worst");
  options.ShortText("--request-id", "TEXT", limits::kRequestIdBytes, &flags->request_id,
                    "Submitting twice with the same text creates one job (default: a new UUID)");
}

}  // namespace nsa::client
