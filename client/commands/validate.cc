// nsactl validate: runs preflight on a job file without submitting it.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "client/cli.h"
#include "client/commands/check_job.h"
#include "client/connect/job_source.h"
#include "client/connect/local/count_data.h"
#include "client/connect/local/local_worker.h"
#include "common/base/status.h"
#include "common/preflight/preflight.h"

namespace nsa::client {
namespace {

struct ValidateFlags {
  std::string file;
  std::vector<std::string> sets;
  bool offline = false;
  bool data = false;
};

void AddCount(const char* name, int64_t value, const char* unit, v1::PreflightReport* report) {
  v1::EstimateItem* item = report->add_estimates();
  item->set_name(name);
  item->set_value(static_cast<double>(value));
  item->set_unit(unit);
}

// What preflight finds in JSON lines that it reads to the end, of all data.
void AddWarnings(const v1::CorpusSummary& corpus, const v1::JobSpec& spec,
                 v1::PreflightReport* report) {
  constexpr char kRule[] = "DATA_WHERE_VALUES";
  for (const v1::DataWarning& warning : corpus.warnings()) {
    const bool known = std::ranges::any_of(report->findings(), [&](const v1::Finding& finding) {
      return finding.rule() == kRule && finding.field() == warning.field();
    });
    if (known) continue;
    v1::Finding* const finding = report->add_findings();
    finding->set_rule(kRule);
    finding->set_severity(v1::SEVERITY_WARNING);
    finding->set_field(warning.field());
    finding->set_problem(warning.problem());
    finding->set_fix(warning.fix());
    const auto waived = spec.preflight().waive().find(kRule);
    if (waived != spec.preflight().waive().end()) finding->set_waived(waived->second);
  }
}

// Reads the data on this machine and adds what it contains to the estimates.
absl::Status AddData(Session& session, const v1::JobSpec& spec, v1::PreflightReport* report) {
  NSA_ASSIGN_OR_RETURN(const v1::CorpusSummary corpus,
                       CountData(spec, WorkerBesideThisProgram(), &session.interrupt()));
  AddCount("data: documents", corpus.documents(), "documents", report);
  AddCount("data: copies of validation documents dropped", corpus.dropped_documents(), "documents",
           report);
  AddCount("data: tokens", corpus.tokens(), "tokens", report);
  AddCount("data: rows in an epoch", corpus.rows(), "rows", report);
  AddCount("data: documents for validation", corpus.val_documents(), "documents", report);
  AddCount("data: tokens for validation", corpus.val_tokens(), "tokens", report);
  AddCount("data: rows for validation", corpus.val_rows(), "rows", report);
  AddCount("data: lines and rows without a text (null), skipped", corpus.null_rows(), "rows",
           report);
  AddCount("data: empty files, passed", corpus.empty_files(), "files", report);
  AddWarnings(corpus, spec, report);
  if (!corpus.has_packing()) return absl::OkStatus();
  const v1::PackingSummary& packing = corpus.packing();
  AddCount("data: answers in an epoch", packing.answer_tokens(), "tokens", report);
  AddCount("data: padding in an epoch", packing.padding_tokens(), "tokens", report);
  AddCount("data: conversations cut at the end", packing.cut_documents(), "documents", report);
  AddCount("data: tokens cut", packing.cut_tokens(), "tokens", report);
  AddCount("data: conversations left out without an answer before the cut",
           packing.unlearned_documents(), "documents", report);
  return absl::OkStatus();
}

// Prints the findings as comments, then the spec with every default as a job file that loads again.
void PrintYaml(Session& session, const v1::PreflightReport& report, const std::string& file) {
  const std::string text = FormatReport(report, file);
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    session.out() << "# " << line << "\n";
  }
  session.out() << ToYaml(report.spec());
}

absl::StatusOr<ExitCode> Validate(Session& session, const ValidateFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const JobFile job, LoadJobSource(flags.file, flags.sets));
  v1::PreflightReport report;
  if (flags.offline) {
    report = CheckHere(job.spec);
  } else {
    NSA_ASSIGN_OR_RETURN(report, CheckThere(session, job.spec));
  }
  if (flags.data && report.accepted()) NSA_RETURN_IF_ERROR(AddData(session, job.spec, &report));
  AddPlaces(job.source.places, &report);
  AddLegacyKeys(job.source, &report);
  const std::string file = ShownName(flags.file);
  if (session.flags().format == Format::kJson) {
    session.PrintDocument(report);
  } else if (session.flags().format == Format::kYaml) {
    PrintYaml(session, report, file);
  } else {
    // A report without findings begins with the blank line before the estimate.
    const std::string text = FormatReport(report, file);
    session.out() << absl::StripLeadingAsciiWhitespace(text);
  }
  if (!report.accepted()) return absl::InvalidArgumentError(RefusalText(flags.file, report));
  return ExitCode::kOk;
}

}  // namespace

void AddValidate(Cli* cli) {
  const auto flags = std::make_shared<ValidateFlags>();
  Options options = cli->Add(
      {.name = "validate",
       .what = "Run preflight on a job file without submitting it",
       .group = "Jobs",
       .more = "-o json prints the report; -o yaml prints the job file with every default filled "
               "in, below the findings as\ncomments. Exit code 2 when the job would be refused.",
       .examples = "nsactl validate job.yaml\n"
                   "nsactl validate job.yaml --offline\n"
                   "nsactl validate job.yaml --offline --data\n"
                   "nsactl validate job.yaml --set runtime.precision=fp32 -o json | jq .findings\n"
                   "nsactl validate job.yaml --offline -o yaml > full.yaml",
       .run = [flags](Session& session) { return Validate(session, *flags); }});
  options.Argument("FILE", &flags->file, "Job file; - reads standard input");
  options.Flag("--offline", &flags->offline,
               "Do not ask the coordinator; rules that depend on its machines are not checked");
  options.Flag("--data", &flags->data,
               "Also read the data files on this machine and count documents, copies, tokens and "
               "rows");
  options.Texts("--set", "FIELD=VALUE", &flags->sets,
                "Change a field of the file; may be repeated");
}

}  // namespace nsa::client
