// Prints a preflight report as text and finds the places of its findings in the job file.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/count.h"
#include "common/preflight/preflight.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

std::string_view SeverityWord(v1::Severity severity) {
  switch (severity) {
    case v1::SEVERITY_ERROR:
      return "error";
    case v1::SEVERITY_WARNING:
      return "warning";
    default:
      return "note";
  }
}

// The first key of the file.
SourcePlace Beginning(const SourceMap& places) {
  SourcePlace first;
  for (const auto& [field, place] : places) {
    const bool earlier = std::tie(place.line, place.column) < std::tie(first.line, first.column);
    if (place.line > 0 && (first.line == 0 || earlier)) first = place;
  }
  return first;
}

// The place of the nearest enclosing section that is in the file, else of the file's first key.
SourcePlace Around(const SourceMap& places, std::string_view field) {
  while (!field.empty()) {
    if (const auto place = places.find(field); place != places.end()) return place->second;
    const size_t end = field.find_last_of(".[");
    if (end == std::string_view::npos) break;
    field = field.substr(0, end);
  }
  return Beginning(places);
}

std::string FindingLine(const v1::Finding& finding, const std::string& file) {
  std::string line = file;
  if (finding.line() > 0) absl::StrAppendFormat(&line, ":%d:%d", finding.line(), finding.column());
  absl::StrAppend(&line, line.empty() ? "" : ": ", std::string(SeverityWord(finding.severity())),
                  " ", finding.rule(), ": ", finding.field(), finding.absent() ? " (absent)" : "",
                  ": ", finding.problem());
  if (!finding.fix().empty()) absl::StrAppend(&line, "; ", finding.fix());
  if (!finding.waived().empty()) absl::StrAppend(&line, " [waived: ", finding.waived(), "]");
  return line + "\n";
}

std::string Value(const v1::EstimateItem& item) {
  if (item.unit() == "bytes") return Bytes(item.value());
  if (item.unit() == "seconds") return Duration(item.value());
  if (item.unit() == "flops") return absl::StrCat(Number(item.value() / 1e6, 4), " MFLOP");
  if (item.unit() == "tokens_per_second") {
    return absl::StrCat(Grouped(std::llround(std::min(item.value(), 1e18))), " tok/s");
  }
  return Grouped(std::llround(std::min(item.value(), 1e18)));
}

std::string EstimateTable(const v1::PreflightReport& report) {
  size_t name_width = 0;
  size_t value_width = 0;
  std::vector<std::string> values;
  for (const v1::EstimateItem& item : report.estimates()) {
    values.push_back(Value(item));
    name_width = std::max(name_width, item.name().size());
    value_width = std::max(value_width, values.back().size());
  }
  std::string table;
  for (int i = 0; i < report.estimates_size(); ++i) {
    absl::StrAppendFormat(&table, "  %-*s  %*s\n", static_cast<int>(name_width),
                          report.estimates(i).name(), static_cast<int>(value_width), values[i]);
  }
  return table;
}

}  // namespace

std::string Duration(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (seconds < 10) return absl::StrFormat("%.2g s", seconds);
  if (seconds < 90) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 5400) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 36 * 3600) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f days", seconds / 86400);
}

std::string Bytes(double bytes) {
  static constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  const std::string name(kUnits[unit]);
  return unit == 0 ? absl::StrFormat("%.0f %s", bytes, name)
                   : absl::StrFormat("%.2f %s", bytes, name);
}

void AddPlaces(const SourceMap& places, v1::PreflightReport* report) {
  for (v1::Finding& finding : *report->mutable_findings()) {
    const auto found = places.find(finding.field());
    const SourcePlace place =
        found != places.end() ? found->second : Around(places, finding.field());
    // An element of a list ("data.path[0]") is there when the list is, also as one plain value.
    const std::string_view key =
        std::string_view(finding.field()).substr(0, finding.field().find('['));
    finding.set_absent(!places.empty() && places.find(key) == places.end());
    finding.set_line(place.line);
    finding.set_column(place.column);
  }
}

void AddLegacyKeys(const LoadResult& source, v1::PreflightReport* report) {
  for (const LegacyKey& key : source.legacy) {
    v1::Finding* finding = report->add_findings();
    finding->set_rule("LEGACY_KEY");
    finding->set_severity(v1::SEVERITY_WARNING);
    finding->set_field(key.field);
    finding->set_problem(key.why);
    finding->set_line(key.place.line);
    finding->set_column(key.place.column);
  }
  std::stable_sort(
      report->mutable_findings()->begin(), report->mutable_findings()->end(),
      [](const v1::Finding& a, const v1::Finding& b) { return a.severity() > b.severity(); });
}

std::string FormatReport(const v1::PreflightReport& report, const std::string& file) {
  std::string text;
  int refusing = 0;
  for (const v1::Finding& finding : report.findings()) {
    text += FindingLine(finding, file);
    refusing += finding.severity() == v1::SEVERITY_ERROR && finding.waived().empty() ? 1 : 0;
  }
  const std::string policy =
      report.policy() == v1::PREFLIGHT_POLICY_PRODUCTION ? "production" : "experiment";
  if (report.estimates_size() > 0) text += "\nEstimate\n" + EstimateTable(report) + "\n";
  if (report.accepted() && !report.start().empty()) absl::StrAppend(&text, report.start(), "\n");
  absl::StrAppend(&text, report.accepted()
                             ? absl::StrCat("accepted (policy: ", policy, ")\n")
                             : absl::StrFormat("refused: %d %s (policy: %s)\n", refusing,
                                               refusing == 1 ? "error" : "errors", policy));
  return CleanText(text);
}

}  // namespace nsa
