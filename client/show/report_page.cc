#include "client/show/report_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/show/draw/markup.h"
#include "client/show/draw/svg_chart.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "client/show/metrics_view.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "common/estimate/run_time.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

constexpr size_t kEvents = 500;
constexpr int kWide = 900;
constexpr int kHalf = 444;

constexpr char kStyle[] = R"(
:root{color-scheme:light dark;--back:#f6f7f8;--panel:#fff;--ink:#1a1d21;--soft:#5f6772;--line:#e2e5e9;
--good:#1f8a4c;--bad:#c0312f;--warn:#a86200}
@media (prefers-color-scheme:dark){:root{--back:#0f1114;--panel:#16191d;--ink:#e5e8ec;--soft:#9aa3ae;--line:#2a2f36;
--good:#56c288;--bad:#f0797a;--warn:#e0a545}}
body{margin:0 auto;max-width:900px;padding:24px 20px 60px;font:14px/1.5 system-ui,'DejaVu Sans',sans-serif;background:var(--back);
color:var(--ink);font-variant-numeric:tabular-nums}
h1{font-size:22px;margin:0}h2{font-size:16px;margin:32px 0 8px}p{margin:6px 0}
table{border-collapse:collapse;width:100%;background:var(--panel)}
th,td{text-align:left;padding:4px 10px;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
th{font-weight:500;color:var(--soft)}tbody th{white-space:nowrap;width:1%}
thead+tbody td:nth-child(2){white-space:nowrap}td.num,th.num{text-align:right;white-space:nowrap}td.time{white-space:nowrap;color:var(--soft)}
pre{background:var(--panel);border:1px solid var(--line);padding:12px;white-space:pre-wrap;overflow-wrap:anywhere;
font:12px/1.45 ui-monospace,'DejaVu Sans Mono',monospace}
.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
svg.chart{box-sizing:border-box;width:100%;height:auto;border:1px solid var(--line);border-radius:8px;margin:4px 0}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 12px}@media (max-width:700px){.pair{grid-template-columns:1fr}}
@media print{body{background:#fff}}
)";

const char* ClassOf(v1::Severity severity) {
  if (severity == v1::SEVERITY_ERROR) return "bad";
  return severity == v1::SEVERITY_WARNING ? "warn" : "";
}

std::string Heading(const std::string& text) {
  return absl::StrCat("<h2>", Markup(text), "</h2>\n");
}

std::string Soft(const std::string& text) {
  return absl::StrCat("<p class=\"soft\">", Markup(text), "</p>\n");
}

std::string Pre(const std::string& text) { return absl::StrCat("<pre>", Markup(text), "</pre>\n"); }

// Rows "name: value"; empty values and "-" are left out.
class Facts {
 public:
  void Add(const std::string& name, const std::string& value, const std::string& style = "") {
    if (value.empty() || value == "-") return;
    absl::StrAppend(&rows_, "<tr><th scope=\"row\">", Markup(name), "</th><td class=\"",
                    Markup(style), "\">", Markup(value), "</td></tr>\n");
  }
  std::string Table() const {
    if (rows_.empty()) return "";
    return absl::StrCat("<table><tbody>\n", rows_, "</tbody></table>\n");
  }

 private:
  std::string rows_;
};

// A table with a heading for each column.
class Rows {
 public:
  explicit Rows(const std::vector<std::string>& titles) {
    for (const std::string& title : titles) {
      absl::StrAppend(&head_, "<th scope=\"col\">", Markup(title), "</th>");
    }
  }
  // `style` is that of the second cell.
  void Add(const std::vector<std::string>& cells, const std::string& style = "") {
    absl::StrAppend(&rows_, "<tr>");
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string shown = i == 0 ? "time" : i == 1 ? style : "";
      absl::StrAppend(&rows_, "<td class=\"", Markup(shown), "\">", Markup(cells[i]), "</td>");
    }
    absl::StrAppend(&rows_, "</tr>\n");
  }
  bool empty() const { return rows_.empty(); }
  std::string Table() const {
    return absl::StrCat("<table><thead><tr>", head_, "</tr></thead><tbody>\n", rows_,
                        "</tbody></table>\n");
  }

 private:
  std::string head_;
  std::string rows_;
};

const char* ClassOf(Colour colour) {
  switch (colour) {
    case Colour::kGood:
      return "good";
    case Colour::kBad:
      return "bad";
    case Colour::kDim:
      return "soft";
    default:
      return "warn";
  }
}

std::string Paragraph(Colour colour, const std::string& text) {
  return absl::StrCat("<p class=\"", ClassOf(colour), "\">", Markup(text), "</p>\n");
}

// What is wrong and what helps, or that nothing is.
std::string Verdict(const v1::Job& job) {
  std::string html;
  for (const v1::Problem& problem : job.problems()) {
    html += Paragraph(ProblemColour(problem), ProblemText(problem));
    if (!problem.muted() && !problem.remedies().empty()) html += Pre(RemediesText(problem));
  }
  const std::string& words = job.health().words();
  return !html.empty() || words.empty() ? html : Paragraph(HealthColour(job.health()), words);
}

std::string Head(const Report& report) {
  const v1::Job& job = report.job;
  const std::string reason = ReasonText(job);
  const bool well = job.state() == v1::Job::STATE_SUCCEEDED && StateColour(job) == Colour::kGood;
  return absl::StrCat(
      "<h1>", Markup(job.name()), " <span class=\"", ClassOf(StateColour(job)), "\">",
      Markup(StateTitle(job)), "</span></h1>\n", Verdict(job),
      reason.empty() || well ? "" : "<p>" + Markup(reason) + "</p>\n",
      Soft(absl::StrCat("Job ", job.id(), ", reported ", Timestamp(absl::ToUnixNanos(report.now)),
                        " by nsactl report")));
}

// What the job has occupied: "19.2 GPU hours (8 GPUs for 2 h 24 min)". Only the run time
// counts. Empty before its first start.
std::string CostText(const v1::Job& job, double seconds) {
  if (seconds < 0) return "";
  const int ranks = std::max(1, job.spec().resources().gpus());
  const bool cuda = job.spec().runtime().device() == v1::DEVICE_CUDA;
  return absl::StrFormat("%.*f %s hours (%s for %s)", seconds * ranks < 36'000 ? 2 : 1,
                         seconds * ranks / 3600, cuda ? "GPU" : "rank",
                         Count(ranks, cuda ? "GPU" : "rank"), HumanDuration(seconds));
}

std::string FiguresSection(const Report& report) {
  const v1::Job& job = report.job;
  const v1::JobProgress& p = job.progress();
  const double seconds = RunSeconds(job, report.now);
  Facts facts;
  facts.Add("Submitted", Timestamp(job.submit_unix_nanos()));
  facts.Add("Started", Timestamp(job.start_unix_nanos()));
  facts.Add("Ended", Timestamp(job.end_unix_nanos()));
  facts.Add("Run time", HumanDuration(seconds));
  facts.Add("Cost", CostText(job, seconds));
  if (p.total_steps() > 0) {
    facts.Add("Steps", absl::StrFormat("%s of %s (%.1f %%)", WithCommas(p.step()),
                                       WithCommas(p.total_steps()), 100 * ShareDone(p)));
  }
  facts.Add("Tokens", p.total_tokens() == 0 ? "" : WithCommas(p.total_tokens()));
  if (const auto loss = report.curves.RecentLoss(); loss.has_value()) {
    facts.Add("Loss", absl::StrCat(HumanLoss(loss->loss), " (mean of the last ",
                                   Count(loss->steps, "step"), ")"));
  }
  if (p.val_step() != 0) {
    facts.Add("Validation loss",
              absl::StrCat(HumanLoss(p.val_loss()), " at step ", WithCommas(p.val_step())));
  }
  if (const auto best = report.curves.Best(); best.has_value()) {
    facts.Add("Best validation",
              absl::StrCat(HumanLoss(best->loss), " at step ", WithCommas(best->step)));
  }
  const double speed = report.curves.MedianSpeed();
  if (std::isfinite(speed)) {
    facts.Add("Throughput", HumanCount(speed) + " tokens a second (median of the steps)");
  }
  const int64_t memory = report.curves.PeakMemory();
  if (memory > 0) facts.Add("Memory", HumanBytes(memory) + " at most");
  if (p.productive_seconds() > 0) {
    facts.Add("Goodput", absl::StrFormat("%.1f %% of the run time in steps that count",
                                         100 * Goodput(job, report.now)));
  }
  facts.Add("Restarts", absl::StrCat(job.restarts()), job.restarts() > 0 ? "warn" : "");
  facts.Add("Gates", GatesText(p));
  return Heading("Figures") + facts.Table();
}

std::string CurvesSection(const Report& report) {
  std::string html = Heading("Curves");
  if (report.curves.points() == 0) return html + Soft("The job has not done a step.");
  for (const Metric* metric : MetricsShown()) {
    const bool first = metric == MetricsShown().front();
    if (report.curves.CurveOf(*metric, Across::kSteps).y.empty() && !first) continue;
    Chart chart = ChartOf(*metric, Across::kSteps, {{.name = "", .curves = &report.curves}});
    chart.title = first ? metric->view.brief : metric->view.label;
    chart.title[0] = absl::ascii_toupper(chart.title[0]);
    html += SvgChart(chart, first ? kWide : kHalf, first ? 340 : 220);
    if (first) html += "<div class=\"pair\">\n";
  }
  return html + "</div>\n";
}

std::string PreflightSection(const v1::Job& job) {
  std::string html = Heading("Preflight");
  if (job.warnings().empty() && job.waivers().empty()) {
    return html + Soft("No warnings, no waived rules.");
  }
  Rows rows({"Rule", "Severity", "Field", "Problem", "What to do"});
  for (const v1::Finding& finding : job.warnings()) {
    const bool error = finding.severity() == v1::SEVERITY_ERROR;
    rows.Add({finding.rule(), error ? "error" : "warning", finding.field(), finding.problem(),
              finding.fix()},
             ClassOf(finding.severity()));
  }
  const std::map<std::string, std::string> sorted(job.waivers().begin(), job.waivers().end());
  for (const auto& [rule, reason] : sorted) rows.Add({rule, "waived", "", reason, ""});
  return html + rows.Table();
}

// Events that are one row: the page folds them alike (Folded in server/web/page/rows.js).
struct EventGroup {
  const v1::JobEvent* first = nullptr;
  const v1::JobEvent* last = nullptr;
  int64_t count = 0;

  // "×12 since 2026-11-29 03:17:00: ", and the text of the last.
  std::string Text() const {
    if (count == 1) return last->text();
    return absl::StrCat("×", count, " since ", Timestamp(first->unix_nanos()), ": ", last->text());
  }
};

// Warnings and errors with one reason, of one rank and one start of the ranks, are one group,
// others where they follow each other; notes are never folded. In the order of their last events.
std::vector<EventGroup> Folded(const std::vector<v1::JobEvent>& events) {
  using Key = std::tuple<std::string, int64_t, int32_t>;
  std::map<Key, EventGroup> open;
  std::vector<EventGroup> groups;
  const auto close = [&groups](const EventGroup& group) {
    if (group.count > 0) groups.push_back(group);
  };
  const v1::JobEvent* before = nullptr;
  for (const v1::JobEvent& event : events) {
    EventGroup& group = open[{event.reason(), event.generation(), event.rank()}];
    const bool joins = event.severity() >= v1::SEVERITY_WARNING || group.last == before;
    if (group.count > 0 && (!joins || event.reason() == Word(Reason::kNote))) {
      close(group);
      group = {};
    }
    if (group.count == 0) group.first = &event;
    group.last = before = &event;
    ++group.count;
  }
  for (const auto& [key, group] : open) close(group);
  std::ranges::sort(groups, {}, &EventGroup::last);  // events are in one list, in order
  return groups;
}

std::string EventsSection(const Report& report) {
  std::string html = Heading("Events");
  const std::vector<EventGroup> groups = Folded(report.events);
  const size_t count = groups.size();
  const size_t first = count > kEvents ? count - kEvents : 0;
  if (first > 0) html += Soft(absl::StrCat("The last ", kEvents, " of ", count, "."));
  Rows rows({"Time", "Reason", "What happened", "Rank"});
  for (size_t i = first; i < count; ++i) {
    const v1::JobEvent& event = *groups[i].last;
    rows.Add({Timestamp(event.unix_nanos()), event.reason(), groups[i].Text(),
              event.rank() < 0 ? "-" : absl::StrCat(event.rank())},
             ClassOf(event.severity()));
  }
  return html + (rows.empty() ? Soft("None.") : rows.Table());
}

// What went wrong: events that are warnings or errors (those of workers too), checkpoints that
// failed, saved stacks.
std::string FaultsSection(const Report& report) {
  Rows rows({"Time", "Reason", "What happened"});
  for (const EventGroup& group : Folded(report.events)) {
    const v1::JobEvent& event = *group.last;
    if (event.severity() < v1::SEVERITY_WARNING) continue;
    rows.Add({Timestamp(event.unix_nanos()), event.reason(), group.Text()},
             ClassOf(event.severity()));
  }
  for (const v1::WorkerRecord& failed : report.curves.FailedCheckpoints()) {
    v1::WatchRecordsResponse fault;
    *fault.mutable_record() = failed;
    rows.Add({Timestamp(failed.unix_nanos()), "rank 0", RecordLine(fault)}, "bad");
  }
  for (const v1::SavedStacks& saved : report.stacks) {
    rows.Add({Timestamp(saved.unix_nanos()), "stacks saved",
              absl::StrCat(saved.why(), " (nsactl dump-stack ", report.job.id(),
                           " --saved=", saved.id(), ")")},
             "warn");
  }
  if (const std::string why = TelemetryText(report.job); !why.empty()) {
    rows.Add({"now", "telemetry", "not written, " + why}, "warn");
  }
  return Heading("Faults") + (rows.empty() ? Soft("None.") : rows.Table());
}

std::string CheckpointsSection(const Report& report) {
  std::string html = Heading("Checkpoints");
  if (!report.checkpoints_problem.empty()) {
    return html + Soft("They could not be listed: " + report.checkpoints_problem);
  }
  Rows rows({"Written", "Step", "Validation loss", "Size", "Folder"});
  for (const v1::CheckpointInfo& one : report.checkpoints) {
    rows.Add({Timestamp(one.unix_nanos()),
              absl::StrCat(WithCommas(one.step()), one.pinned() ? " (pinned)" : ""),
              HumanLoss(one.val_loss()), HumanBytes(one.bytes()),
              one.error().empty() ? one.path() : absl::StrCat(one.path(), ": ", one.error())},
             one.error().empty() ? "" : "bad");
  }
  return html + (rows.empty() ? Soft("None.") : rows.Table());
}

std::string PromptAndText(const std::string& prompt, const std::string& text) {
  return absl::StrCat("<p>Prompt: <b>", Markup(prompt.empty() ? "(a new document)" : prompt),
                      "</b></p>\n", Pre(text));
}

// The texts that the job wrote after its newest validation, and those of --prompt.
std::string SamplesSection(const Report& report) {
  std::string html = Heading("Samples");
  const std::vector<v1::SampleRecord> own = report.curves.Samples();
  if (!own.empty()) {
    html += Soft(absl::StrCat("Written by the job at step ", WithCommas(own[0].step()),
                              "; nsactl samples ", report.job.id(), " shows those of all steps."));
  } else if (!report.job.spec().sample().prompts().empty()) {
    html += Soft("The job has not written any yet.");
  } else if (report.samples.empty()) {
    html += Soft(
        "The job has no sample.prompts; nsactl report --prompt TEXT adds a text of its newest "
        "checkpoint.");
  }
  for (const v1::SampleRecord& sample : own) {
    html += PromptAndText(sample.prompt(), sample.error().empty() ? sample.prompt() + sample.text()
                                                                  : "no text: " + sample.error());
  }
  if (report.samples.empty()) return html;
  html += Soft("Written by " + report.sampled_from + " at temperature 0.8.");
  for (const Report::Sample& sample : report.samples) {
    html += PromptAndText(sample.prompt, sample.text);
  }
  return html;
}

// The sources of a mixture and the named validation sets, if the job has any.
std::string DataSection(const v1::Job& job) {
  std::string html;
  const auto add = [&html](const char* title, Rows rows,
                           const std::vector<std::vector<std::string>>& cells) {
    for (const std::vector<std::string>& row : cells) rows.Add(row);
    if (!rows.empty()) html += Heading(title) + rows.Table();
  };
  add("Sources", Rows({"Name", "Weight", "Share", "Epoch", "Loss", "Files"}), SourceRows(job));
  add("Validation sets", Rows({"Name", "Loss", "Tokens", "Files"}), ValSetRows(job));
  return html;
}

std::string EnvironmentSection(const Report& report) {
  const v1::WorkerStarted started = report.curves.Started();
  Facts facts;
  facts.Add("Coordinator",
            absl::StrCat(report.version.version(), report.version.revision().empty() ? "" : " ",
                         report.version.revision()));
  facts.Add("Submitted by", report.job.owner());
  facts.Add("Device", started.device());
  if (started.parameters() > 0) facts.Add("Parameters", WithCommas(started.parameters()));
  facts.Add("Data", CorpusText(report.job.progress().corpus()));
  facts.Add("Began with", report.job.progress().initialized_from());
  facts.Add("Resumed from", started.resumed_from());
  facts.Add("Output", report.job.spec().train().out_dir());
  for (const v1::RankStatus& rank : report.job.ranks()) {
    facts.Add(absl::StrCat("Rank ", rank.rank()),
              absl::StrCat("on ", rank.node(), ", process ", rank.pid(), ", ", rank.state(),
                           rank.note().empty() ? "" : ", ", rank.note()));
  }
  for (const v1::Node& node : report.nodes) {
    const v1::NodeInfo& info = node.info();
    std::vector<std::string> parts = {absl::StrCat(info.cores(), " cores"),
                                      HumanBytes(info.memory_bytes())};
    for (const v1::GpuInfo& gpu : info.gpus()) parts.push_back(gpu.name());
    if (!info.driver_version().empty()) parts.push_back("driver " + info.driver_version());
    parts.push_back("agent " + info.agent_version());
    facts.Add("Machine " + info.name(), absl::StrJoin(parts, ", "));
  }
  std::vector<std::string> labels;
  for (const auto& [key, value] : report.job.spec().labels()) labels.push_back(key + "=" + value);
  std::sort(labels.begin(), labels.end());
  facts.Add("Labels", absl::StrJoin(labels, ", "));
  return Heading("Environment") + facts.Table();
}

}  // namespace

std::string ReportPage(const Report& report) {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
      Markup(report.job.name()), "</title>\n<style>", kStyle, SvgStyle(), "</style></head><body>\n",
      Head(report), FiguresSection(report), CurvesSection(report), DataSection(report.job),
      FaultsSection(report), SamplesSection(report), PreflightSection(report.job),
      EnvironmentSection(report), CheckpointsSection(report), EventsSection(report),
      Heading("Configuration"), Soft("The job file with every default filled in."),
      Pre(report.configuration), "</body></html>\n");
}

}  // namespace nsa::client
