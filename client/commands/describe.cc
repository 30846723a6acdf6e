// nsactl describe: everything about one job.
#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "client/show/metrics_view.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/estimate/run_time.h"
#include "common/estimate/state_title.h"
#include "common/job/load.h"

namespace nsa::client {
namespace {

constexpr size_t kEventsShown = 8;

// "Name:        value" lines; empty values are left out.
class Fields {
 public:
  explicit Fields(std::ostream* out) : out_(*out) {}

  void Add(const std::string& name, const std::string& value) {
    if (value.empty() || value == "-") return;
    out_ << absl::StrFormat("%-13s", name + ":") << value << "\n";
  }

 private:
  std::ostream& out_;
};

std::string When(absl::Time now, int64_t unix_nanos) {
  if (unix_nanos == 0) return "-";
  return absl::StrCat(Timestamp(unix_nanos), " (", HumanAge(now, unix_nanos), ")");
}

// How long the job has run so far, or ran until its end.
std::string RunTime(const v1::Job& job, absl::Time now) {
  const double seconds = RunSeconds(job, now);
  return seconds < 0 ? "-" : HumanDuration(seconds);
}

// "slurm job 17, RUNNING, until 2026-11-25 14:00:00 UTC".
std::string AllocationText(const v1::Job& job) {
  const v1::Allocation& allocation = job.allocation();
  if (allocation.id().empty()) return job.spec().resources().provisioner();
  std::string text = absl::StrCat(
      allocation.provisioner(), " job ",
      allocation.cluster_id().empty() ? "without a number yet" : allocation.cluster_id());
  const bool over = allocation.state() == v1::Allocation::STATE_ENDING ||
                    allocation.state() == v1::Allocation::STATE_ENDED;
  if (over)
    return absl::StrCat(text, allocation.state() == v1::Allocation::STATE_ENDED
                                  ? ", given back"
                                  : ", being given back");
  if (!allocation.text().empty()) absl::StrAppend(&text, ", ", allocation.text());
  if (allocation.end_unix_nanos() != 0) {
    absl::StrAppend(&text, ", until ", Timestamp(allocation.end_unix_nanos()));
  }
  return text;
}

void PrintProgress(const v1::Job& job, absl::Time now, Fields* fields) {
  const v1::JobProgress& p = job.progress();
  if (p.total_steps() == 0) return;
  const bool moving = job.state() == v1::Job::STATE_RUNNING;
  fields->Add("Step",
              absl::StrFormat("%d of %d (%.1f %%)", p.step(), p.total_steps(), 100 * ShareDone(p)));
  fields->Add("Loss", HumanLoss(p.loss()));
  if (p.val_step() != 0) {
    fields->Add("Validation", absl::StrCat(HumanLoss(p.val_loss()), " at step ", p.val_step()));
  }
  if (p.total_tokens() != 0) {
    fields->Add(
        "Tokens",
        absl::StrCat(
            WithCommas(p.total_tokens()),
            moving ? absl::StrCat(" (", HumanCount(p.tokens_per_second()), " a second)") : ""));
    std::vector<std::string> newest;
    for (const record::Quantity& quantity : record::kQuantities) {
      if (quantity.newest == nullptr) continue;
      newest.push_back(
          absl::StrCat(quantity.view.label, " ", QuantityText(quantity, quantity.newest(p))));
    }
    fields->Add("Optimizer", absl::StrJoin(newest, ", "));
  }
  if (!job.health().words().empty()) fields->Add("Health", job.health().words());
  fields->Add("Gates", GatesText(p));
  fields->Add("Resources", ResourcesText(p));
  if (moving) fields->Add("Ends in", HumanDuration(p.eta_seconds()));
  if (p.checkpoint_unix_nanos() != 0) {
    fields->Add("Checkpoint", absl::StrCat("step ", p.checkpoint_step(), ", ",
                                           HumanAge(now, p.checkpoint_unix_nanos())));
  }
  if (!p.checkpoint_error().empty()) {
    fields->Add("Not saved", absl::StrCat("the newest checkpoint failed: ", p.checkpoint_error()));
  }
  if (p.uploaded_unix_nanos() != 0) {
    fields->Add("Uploaded", absl::StrCat("step ", p.uploaded_step(), ", ",
                                         HumanAge(now, p.uploaded_unix_nanos()), ", to ",
                                         job.spec().train().checkpoint_url()));
  }
  if (!p.upload_error().empty()) {
    fields->Add("Not uploaded", absl::StrCat("the newest upload failed: ", p.upload_error()));
  }
}

constexpr const char* kFates[] = {"unknown", "awaited", "finished", "will not finish", "deleted"};

// "prep (jqx2…) finished, eval (jw5d…) awaited".
std::string AfterText(const v1::Job& job) {
  std::vector<std::string> texts;
  for (const v1::Predecessor& one : job.after()) {
    const auto fate = static_cast<size_t>(one.state());
    texts.push_back(absl::StrCat(one.name(), " (", one.id(), ") ",
                                 kFates[fate < std::size(kFates) ? fate : 0]));
  }
  return absl::StrJoin(texts, ", ");
}

// "2026-12-24T18:00:00Z (in 2 h 00 min)".
std::string NotBeforeText(const v1::Job& job, absl::Time now) {
  if (job.not_before_unix_nanos() == 0) return "";
  const absl::Time start = absl::FromUnixNanos(job.not_before_unix_nanos());
  return absl::StrCat(Timestamp(job.not_before_unix_nanos()), " (in ",
                      HumanDuration(std::max(absl::ToDoubleSeconds(start - now), 0.0)), ")");
}

void PrintHead(Session& session, const v1::Job& job) {
  const absl::Time now = session.now();
  Fields fields(&session.out());
  fields.Add("Name", job.name());
  fields.Add("Id", job.id());
  fields.Add("State", Paint(StateColour(job), StateTitle(job), session.colours()));
  fields.Add("Reason", ReasonText(job));
  fields.Add("Next start", NextStartText(job, now));
  if (!HasEnded(job)) fields.Add("Stop", StopText(job.stop()));
  fields.Add("After", AfterText(job));
  fields.Add("Not before", NotBeforeText(job, now));
  if (job.queue_position() > 0) {
    fields.Add("Queue", absl::StrCat("position ", job.queue_position()));
  }
  fields.Add("Machines", AllocationText(job));
  if (HasFewerRanks(job)) {
    fields.Add(
        "Ranks",
        absl::StrCat(RanksText(job),
                     ": there was no room for more at its last start; the next one, "
                     "as after `nsactl stop` and `nsactl resume`, takes all that there is room "
                     "for"));
  }
  fields.Add("Unix user", job.unix_user());
  fields.Add("Submitted", When(now, job.submit_unix_nanos()));
  fields.Add("Started", When(now, job.start_unix_nanos()));
  fields.Add("Ended", When(now, job.end_unix_nanos()));
  fields.Add("Run time", RunTime(job, now));
  if (job.progress().productive_seconds() > 0) {
    fields.Add("Goodput", absl::StrFormat("%.1f %% of the run time in steps that count",
                                          100 * Goodput(job, now)));
  }
  if (job.generation() > 0) {
    fields.Add("Restarts", absl::StrCat(job.restarts(), " (generation ", job.generation(), ")"));
  }
  PrintProgress(job, now, &fields);
  if (const std::string why = TelemetryText(job); !why.empty()) {
    fields.Add("Not written", absl::StrCat("telemetry of ", why));
  }
  fields.Add("Data", CorpusText(job.progress().corpus()));
  if (!job.progress().initialized_from().empty()) {
    fields.Add("Weights", absl::StrCat("began with those of ", job.progress().initialized_from()));
  }
  fields.Add("Output", job.spec().train().out_dir());
  std::vector<std::string> labels;
  for (const auto& [key, value] : job.spec().labels()) labels.push_back(key + "=" + value);
  std::sort(labels.begin(), labels.end());
  fields.Add("Labels", absl::StrJoin(labels, ", "));
}

void PrintRanks(Session& session, const v1::Job& job) {
  if (job.ranks().empty()) return;
  session.out() << "\nRanks:\n";
  const bool noted =
      std::ranges::any_of(job.ranks(), [](const auto& rank) { return !rank.note().empty(); });
  std::vector<Table::Column> columns = {{"RANK", true}, {"NODE"},       {"PID", true},
                                        {"STATE"},      {"STEP", true}, {"PHASE"}};
  if (noted) columns.push_back({.title = "NOTE"});
  Table table(std::move(columns));
  for (const v1::RankStatus& rank : job.ranks()) {
    std::vector<Table::Cell> row = {absl::StrCat(rank.rank()),
                                    rank.node(),
                                    rank.pid() == 0 ? "-" : absl::StrCat(rank.pid()),
                                    absl::AsciiStrToLower(rank.state()),
                                    absl::StrCat(rank.step()),
                                    rank.phase()};
    if (noted) row.emplace_back(rank.note());
    table.Add(std::move(row));
  }
  session.PrintTable(table);
}

void PrintRows(Session& session, const char* title, Table table,
               const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return;
  session.out() << "\n" << title << ":\n";
  for (const std::vector<std::string>& row : rows) table.Add({row.begin(), row.end()});
  session.PrintTable(table);
}

// What data.mix asks for, and what each source has given so far.
void PrintSources(Session& session, const v1::Job& job) {
  PrintRows(session, "Sources",
            Table({{"NAME"},
                   {"WEIGHT", true},
                   {"SHARE", true},
                   {"EPOCH", true},
                   {"LOSS", true},
                   {"FILES"}}),
            SourceRows(job));
}

void PrintValSets(Session& session, const v1::Job& job) {
  PrintRows(session, "Validation sets",
            Table({{"NAME"}, {"LOSS", true}, {"TOKENS", true}, {"FILES"}}), ValSetRows(job));
}

void PrintProblems(Session& session, const v1::Job& job) {
  if (job.problems().empty()) return;
  session.out() << "\nProblems:\n";
  for (const v1::Problem& problem : job.problems()) {
    session.out() << Paint(ProblemColour(problem), ProblemText(problem), session.colours()) << "\n"
                  << RemediesText(problem);
  }
}

// Raised or not; those that are raised are among the problems, too.
void PrintAlerts(Session& session, const v1::Job& job) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::AlertSpec& alert : job.spec().alerts()) {
    const auto& all = job.progress().alerts();
    const auto known = std::ranges::find(all, alert.when(), &v1::AlertProgress::when);
    const bool has_value = known != all.end() && known->has_value();
    const bool raised = known != all.end() && known->raised();
    rows.push_back({alert.when(), raised ? absl::StrCat("since step ", known->since_step()) : "no",
                    has_value ? Number(known->value(), 6) : "-",
                    absl::StrJoin(alert.notify(), ", ")});
  }
  PrintRows(session, "Alerts", Table({{"WHEN"}, {"RAISED"}, {"NOW", true}, {"NOTIFY"}}), rows);
}

void PrintVerdict(Session& session, const v1::Job& job) {
  if (!job.waivers().empty()) {
    session.out() << "\nWaived rules:\n";
    const std::map<std::string, std::string> sorted(job.waivers().begin(), job.waivers().end());
    for (const auto& [rule, reason] : sorted) {
      session.out() << "  " << rule << ": " << reason << "\n";
    }
  }
  if (!job.warnings().empty()) {
    session.out() << "\nWarnings of preflight:\n";
    for (const v1::Finding& finding : job.warnings()) {
      session.out() << "  " << finding.rule() << ": " << finding.field() << ": "
                    << finding.problem() << "; " << finding.fix() << "\n";
    }
  }
}

absl::Status PrintEvents(Session& session, Client* client, const v1::Job& job) {
  v1::WatchEventsRequest request;
  request.set_job(job.id());
  std::vector<v1::JobEvent> events;
  NSA_RETURN_IF_ERROR(client->Stream<v1::WatchEventsResponse>(
      request, [&](const v1::WatchEventsResponse& response) {
        events.push_back(response.event());
        return true;
      }));
  if (events.empty()) return absl::OkStatus();
  const size_t first = events.size() > kEventsShown ? events.size() - kEventsShown : 0;
  session.out() << "\nEvents"
                << (first > 0 ? absl::StrCat(" (the last ", kEventsShown, " of ", events.size(),
                                             "; `nsactl events ", job.id(), "` shows all)")
                              : "")
                << ":\n";
  Table table({{"AGE", true}, {"REASON"}, {"TEXT"}});
  for (size_t i = first; i < events.size(); ++i) {
    table.Add(
        {ShortAge(session.now(), events[i].unix_nanos()), events[i].reason(), events[i].text()});
  }
  session.PrintTable(table);
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> Describe(Session& session, const std::string& name, bool spec) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(name));
  if (session.PrintDocumentOrName(job, job.id())) return ExitCode::kOk;
  PrintHead(session, job);
  PrintProblems(session, job);
  PrintRanks(session, job);
  PrintSources(session, job);
  PrintValSets(session, job);
  PrintAlerts(session, job);
  PrintVerdict(session, job);
  NSA_RETURN_IF_ERROR(PrintEvents(session, client, job));
  if (spec || session.wide()) session.out() << "\nSpec:\n" << ToYaml(job.spec());
  return ExitCode::kOk;
}

}  // namespace

void AddDescribe(Cli* cli) {
  struct Flags {
    std::string job;
    bool spec = false;
  };
  const auto flags = std::make_shared<Flags>();
  Options options = cli->Add(
      {.name = "describe",
       .what = "Show everything about a job: progress, ranks, waivers, warnings, events",
       .group = "Jobs",
       .examples = "nsactl describe demo\n"
                   "nsactl describe demo --spec\n"
                   "nsactl describe demo -o json | jq .progress.loss",
       .run = [flags](Session& session) { return Describe(session, flags->job, flags->spec); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Flag("--spec", &flags->spec, "Also the job file with every default filled in");
}

}  // namespace nsa::client
