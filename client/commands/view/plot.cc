// nsactl plot: curves of jobs, in the terminal or as a picture.
#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli.h"
#include "client/commands/view/read_history.h"
#include "client/connect/local/output_file.h"
#include "client/show/document.h"
#include "client/show/draw/svg_chart.h"
#include "client/show/draw/text_chart.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/record/json_number.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr int kPipeColumns = 80;
constexpr int kMostColumns = 160;
constexpr int kRows = 15;
constexpr int kWidth = 860;
constexpr int kHeight = 420;

struct PlotFlags {
  std::vector<std::string> jobs;
  JobFilter filter;
  std::vector<std::string> metrics;
  std::string across = "steps";
  std::string file;
};

absl::StatusOr<std::vector<const Metric*>> MetricsOf(const PlotFlags& flags) {
  std::vector<const Metric*> metrics;
  if (flags.metrics.empty()) return std::vector{MetricsShown().front()};
  const std::string all = absl::StrJoin(flags.metrics, ",");
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(all, ','))) {
    metrics.push_back(FindMetric(name));
    if (metrics.back() == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--metric: '", name, "' (", MetricNames(), "); use one of these"));
    }
  }
  return metrics;
}

std::vector<std::string_view> NamesOf(const std::vector<const Metric*>& metrics) {
  std::vector<std::string_view> names;
  for (const Metric* metric : metrics) names.emplace_back(metric->name);
  return names;
}

// MetricNames() in lines of the help.
std::string MetricLines() {
  constexpr size_t kWide = 100;
  std::string lines;
  size_t used = 0;
  for (const Metric* metric : Metrics()) {
    const std::string name = metric->name;
    const bool first = lines.empty();
    const bool wraps = used + name.size() + 2 > kWide;
    absl::StrAppend(&lines, first ? "" : wraps ? ",\n" : ", ", name);
    used = (wraps ? 0 : used) + name.size() + 2;
  }
  return lines;
}

std::string LabelsOf(const std::vector<const Metric*>& metrics) {
  return absl::StrJoin(metrics, ", ", [](std::string* text, const Metric* metric) {
    absl::StrAppend(text, metric->view.label);
  });
}

// {"metric", "across", "curves": [{"name", "x", "y"}]}; a value that is not finite is "NaN". Where
// points of several steps have such values, "nonfinite" counts those of each point.
nlohmann::ordered_json DocumentOf(const Metric& metric, const std::string& across,
                                  const Chart& chart) {
  nlohmann::ordered_json curves = nlohmann::ordered_json::array();
  for (const Curve& curve : chart.curves) {
    nlohmann::ordered_json y = nlohmann::ordered_json::array();
    for (const double value : curve.y) y.push_back(record::JsonNumber(value));
    curves.push_back({{"name", curve.name}, {"x", curve.x}, {"y", std::move(y)}});
    if (std::ranges::any_of(curve.nonfinite, [](int64_t count) { return count > 0; })) {
      curves.back()["nonfinite"] = curve.nonfinite;
    }
  }
  return {{"metric", metric.name}, {"across", across}, {"curves", std::move(curves)}};
}

void PrintChart(Session& session, const Chart& chart) {
  const Console& console = session.console();
  const int wide = console.terminal && console.columns ? console.columns() - 1 : kPipeColumns;
  const TextSize size{.columns = std::min(wide, kMostColumns),
                      .rows = kRows,
                      .unicode = console.unicode,
                      .colours = session.colours()};
  for (const std::string& line : TextChart(chart, size)) session.out() << line << "\n";
}

absl::StatusOr<ExitCode> Plot(Session& session, const PlotFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const std::vector<const Metric*> metrics, MetricsOf(flags));
  const std::optional<Across> across = FindAcross(flags.across);
  if (!across.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--x: '", flags.across, "' (steps, tokens or time); use one of these"));
  }
  if (!flags.file.empty() && !absl::EndsWith(flags.file, ".svg")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--file: ", flags.file,
                     " (a name that ends in .svg); name such a file, which browsers open and "
                     "rsvg-convert turns into other formats"));
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> chosen,
                       ChooseJobs(session, client, "plot", flags.jobs, flags.filter));
  NSA_ASSIGN_OR_RETURN(const std::vector<ComparedJob> jobs,
                       ReadCurves(client, "plot", chosen, 1, NamesOf(metrics)));
  const std::vector<std::string> names = ShortNames(jobs);
  std::vector<NamedCurves> curves;
  for (size_t i = 0; i < jobs.size(); ++i) curves.push_back({names[i], &jobs[i].curves});
  std::vector<Chart> charts;
  for (const Metric* metric : metrics) charts.push_back(ChartOf(*metric, *across, curves));
  if (!flags.file.empty()) {
    NSA_RETURN_IF_ERROR(WriteOutputFile(flags.file, SvgFile(charts, kWidth, kHeight)));
    session.Note(absl::StrCat(LabelsOf(metrics), " of ", Count(jobs.size(), "job"), " drawn into ",
                              flags.file));
  } else if (session.structured()) {
    nlohmann::ordered_json documents = nlohmann::ordered_json::array();
    for (size_t i = 0; i < metrics.size(); ++i) {
      documents.push_back(DocumentOf(*metrics[i], flags.across, charts[i]));
    }
    session.PrintDocument({{"charts", documents}});
  } else {
    for (const Chart& chart : charts) {
      if (&chart != &charts.front()) session.out() << "\n";
      PrintChart(session, chart);
    }
  }
  return ExitCode::kOk;
}

}  // namespace

void AddPlot(Cli* cli) {
  const auto flags = std::make_shared<PlotFlags>();
  Options options = cli->Add(
      {.name = "plot",
       .what = "Draw the curves of jobs: in the terminal, or into an SVG file",
       .group = "Records",
       .more = absl::StrCat(
           "Up to 8 jobs lie over each other: those that are named, and those that --state and "
           "--label choose.\nOne job's loss also shows its validations. The curves are those of "
           "rank 0 from the first step to the last; steps\nthat were repeated after a restart are "
           "drawn once. Each point of a long curve is the mean of some steps; a picture\nalso "
           "shows their least and greatest value, and a noisy curve pale below its running mean. "
           "Several metrics are\ncharts below each other. A cross below a curve marks values that "
           "are NaN or infinite.\nHere -o names a file; --output json|yaml prints the "
           "numbers.\nMetrics: ",
           MetricLines(), "."),
       .examples = "nsactl plot demo\n"
                   "nsactl plot demo --metric tokens_per_second,memory_bytes --x time\n"
                   "nsactl plot demo other --metric val_loss --x tokens\n"
                   "nsactl plot --label sweep=lr --metric val_loss\n"
                   "nsactl plot demo -o loss.svg\n"
                   "nsactl plot demo --metric loss,learning_rate -o demo.svg\n"
                   "nsactl plot demo --output json | jq '.charts[0].curves[0].y[-1]'",
       .run = [flags](Session& session) { return Plot(session, *flags); }});
  options.OptionalArguments("JOB", &flags->jobs, "Job ids or names");
  options.Choose(&flags->filter);
  options.Texts("--metric", "NAME,...", &flags->metrics, "What to draw (default: loss)");
  options.Text("--x", "WHAT", &flags->across, "Over steps, tokens or time (default: steps)");
  options.Text("-o,--file", "FILE", &flags->file, "Draw into this file, which ends in .svg");
}

}  // namespace nsa::client
