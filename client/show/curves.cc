#include "client/show/history.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace nsa::client {
namespace {

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kRecent = 50;
// Most faults that are kept of a job.
constexpr size_t kFaults = 1000;

// The mean over the layers that have the value.
template <typename Of>
double MeanOfLayers(const v1::StepRecord& step, const Of& of) {
  double sum = 0;
  int count = 0;
  for (const v1::LayerStats& layer : step.layers()) {
    const double value = of(layer);
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return count == 0 ? kMissing : sum / count;
}

double GateEntropy(const v1::StepRecord& step) {
  return MeanOfLayers(step, [](const v1::LayerStats& layer) {
    return layer.has_gate() ? layer.gate().entropy_mean() : kMissing;
  });
}

double MassKept(const v1::StepRecord& step) {
  return MeanOfLayers(step, [](const v1::LayerStats& layer) {
    return layer.audit().has_selected_mass() ? layer.audit().selected_mass() : kMissing;
  });
}

// True for metrics that most steps do not have; their gaps are bridged.
bool IsSparse(const Metric& metric) {
  return metric.value == GateEntropy || metric.value == MassKept;
}

size_t IndexOf(const Metric& metric) { return &metric - kMetricTable.data(); }

using Step = const v1::StepRecord&;

}  // namespace

const std::array<Metric, kMetrics> kMetricTable = {{
    {"loss", "training loss", "nats a token", Unit::kNumber, [](Step s) { return s.loss(); }},
    {"val_loss", "validation loss", "nats a token", Unit::kNumber, nullptr},
    {"tokens_per_second", "throughput", "tokens a second", Unit::kNumber,
     [](Step s) { return s.tokens_per_second(); }},
    {"grad_norm", "gradient norm", "before clipping", Unit::kNumber,
     [](Step s) { return s.grad_norm(); }},
    {"learning_rate", "learning rate", "", Unit::kNumber, [](Step s) { return s.learning_rate(); }},
    {"memory_bytes", "memory", "in use", Unit::kBytes,
     [](Step s) { return static_cast<double>(s.memory_allocated_bytes()); }},
    {"step_seconds", "time of a step", "", Unit::kSeconds,
     [](Step s) { return s.times().step_seconds(); }},
    {"data_seconds", "waiting for data", "each step", Unit::kSeconds,
     [](Step s) { return s.times().data_seconds(); }},
    {"forward_seconds", "forward", "each step", Unit::kSeconds,
     [](Step s) { return s.times().forward_seconds(); }},
    {"backward_seconds", "backward", "each step", Unit::kSeconds,
     [](Step s) { return s.times().backward_seconds(); }},
    {"communication_seconds", "waiting for other ranks", "each step", Unit::kSeconds,
     [](Step s) { return s.times().communication_seconds(); }},
    {"optimizer_seconds", "clipping and the optimizer", "each step", Unit::kSeconds,
     [](Step s) { return s.times().optimizer_seconds(); }},
    {"gate_entropy", "gate entropy", "nats, mean of the layers", Unit::kNumber, GateEntropy},
    {"mass_kept", "attention kept", "share on the selected blocks, mean of the layers",
     Unit::kNumber, MassKept},
}};

const Metric* FindMetric(std::string_view name) {
  const auto* found = std::ranges::find(kMetricTable, name,
                                        [](const Metric& m) { return std::string_view(m.name); });
  return found != kMetricTable.end() ? found : nullptr;
}

std::string MetricNames() {
  std::string names;
  for (const Metric& metric : kMetricTable) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", metric.name);
  }
  return names;
}

std::optional<Across> FindAcross(std::string_view name) {
  if (name == "steps") return Across::kSteps;
  if (name == "tokens") return Across::kTokens;
  if (name == "time") return Across::kTime;
  return std::nullopt;
}

void History::Add(const v1::WatchRecordsResponse& record) {
  const v1::WorkerRecord& what = record.record();
  bool fault = false;
  switch (what.kind_case()) {
    case v1::WorkerRecord::kStarted:
      started_ = what.started();
      break;
    case v1::WorkerRecord::kStep:
      AddStep(record);
      break;
    case v1::WorkerRecord::kEval:
      while (!evaluations_.empty() && evaluations_.back().step >= what.eval().step()) {
        evaluations_.pop_back();
      }
      evaluations_.push_back({.step = what.eval().step(),
                              .loss = what.eval().loss(),
                              .seconds = what.eval().seconds()});
      break;
    case v1::WorkerRecord::kSample:
      if (!samples_.empty() && samples_[0].step() != what.sample().step()) samples_.clear();
      samples_.push_back(what.sample());
      break;
    case v1::WorkerRecord::kCheckpoint:
      fault = !what.checkpoint().error().empty();
      break;
    case v1::WorkerRecord::kEvent:
      fault = what.event().severity() >= v1::SEVERITY_WARNING;
      break;
    case v1::WorkerRecord::kFinished:
      fault = what.finished().outcome() == v1::OUTCOME_FAILED ||
              what.finished().outcome() == v1::OUTCOME_FAILED_FINAL;
      break;
    default:
      break;
  }
  if (!fault) return;
  if (faults_.size() == kFaults) faults_.erase(faults_.begin());
  faults_.push_back(record);
}

void History::AddStep(const v1::WatchRecordsResponse& record) {
  const v1::StepRecord& step = record.record().step();
  if (!rows_.empty() && step.step() <= rows_.back().step) GoBackTo(step.step());
  Row row{.step = step.step(),
          .tokens = static_cast<double>(step.total_tokens()),
          .generation = record.generation(),
          .unix_nanos = record.record().unix_nanos()};
  for (size_t i = 0; i < kMetrics; ++i) {
    row.values[i] = kMetricTable[i].value == nullptr ? kMissing : kMetricTable[i].value(step);
  }
  if (!rows_.empty()) {
    const Row& last = rows_.back();
    const bool same_start = last.generation == row.generation;
    const double passed = same_start ? static_cast<double>(row.unix_nanos - last.unix_nanos) / 1e9
                                     : step.times().step_seconds();
    row.seconds = last.seconds + (passed > 0 ? passed : 0);
  }
  rows_.push_back(row);
}

void History::GoBackTo(int64_t step) {
  while (!rows_.empty() && rows_.back().step >= step) rows_.pop_back();
  while (!evaluations_.empty() && evaluations_.back().step >= step) evaluations_.pop_back();
  if (!samples_.empty() && samples_[0].step() >= step) samples_.clear();
}

double History::PlaceOf(const Row& row, Across across) const {
  if (across == Across::kSteps) return static_cast<double>(row.step);
  return across == Across::kTokens ? row.tokens : row.seconds;
}

Curve History::CurveOf(const Metric& metric, Across across) const {
  Curve curve;
  if (metric.value == nullptr) {
    curve.dots = true;
    for (const Evaluation& each : evaluations_) {
      // The first step that is not before it; a validation after the last one belongs to that.
      auto row = std::ranges::lower_bound(rows_, each.step, {}, &Row::step);
      if (row == rows_.end() && across != Across::kSteps && rows_.empty()) continue;
      if (row == rows_.end() && !rows_.empty()) --row;
      curve.x.push_back(across == Across::kSteps ? static_cast<double>(each.step)
                                                 : PlaceOf(*row, across));
      curve.y.push_back(each.loss);
    }
    return curve;
  }
  const size_t index = IndexOf(metric);
  const bool sparse = IsSparse(metric);
  for (const Row& row : rows_) {
    if (sparse && std::isnan(row.values[index])) continue;
    curve.x.push_back(PlaceOf(row, across));
    curve.y.push_back(row.values[index]);
  }
  return curve;
}

std::optional<History::Evaluation> History::Best() const {
  std::optional<Evaluation> best;
  for (const Evaluation& each : evaluations_) {
    if (std::isfinite(each.loss) && (!best.has_value() || each.loss < best->loss)) best = each;
  }
  return best;
}

double History::RecentLoss() const {
  const size_t index = IndexOf(*FindMetric("loss"));
  double sum = 0;
  int count = 0;
  for (size_t i = rows_.size() > kRecent ? rows_.size() - kRecent : 0; i < rows_.size(); ++i) {
    const double loss = rows_[i].values[index];
    if (!std::isfinite(loss)) continue;
    sum += loss;
    ++count;
  }
  return count == 0 ? kMissing : sum / count;
}

double History::MedianSpeed() const {
  const size_t index = IndexOf(*FindMetric("tokens_per_second"));
  std::vector<double> speeds;
  for (const Row& row : rows_) {
    if (std::isfinite(row.values[index])) speeds.push_back(row.values[index]);
  }
  if (speeds.empty()) return kMissing;
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  return *middle;
}

int64_t History::PeakMemory() const {
  const size_t index = IndexOf(*FindMetric("memory_bytes"));
  double most = 0;
  for (const Row& row : rows_) most = std::max(most, row.values[index]);
  return static_cast<int64_t>(most);
}

Chart ChartOf(const Metric& metric, Across across, const std::vector<NamedHistory>& jobs) {
  Chart chart{.title = metric.title, .note = metric.note, .y_unit = metric.unit};
  chart.x_name = across == Across::kSteps    ? "step"
                 : across == Across::kTokens ? "tokens"
                                             : "time of training";
  if (across == Across::kTime) chart.x_unit = Unit::kSeconds;
  for (const NamedHistory& job : jobs) {
    Curve curve = job.history->CurveOf(metric, across);
    curve.name = job.name;
    curve.colour = static_cast<int>(chart.curves.size());
    chart.curves.push_back(std::move(curve));
  }
  const bool with_validations = jobs.size() == 1 && std::string_view(metric.name) == "loss" &&
                                !jobs[0].history->evaluations().empty();
  if (with_validations) {
    chart.title = "loss";
    chart.curves[0].name = "training";
    Curve curve = jobs[0].history->CurveOf(*FindMetric("val_loss"), across);
    curve.name = "validation";
    curve.colour = 1;
    chart.curves.push_back(std::move(curve));
  }
  if (jobs.size() == 1) chart.title = absl::StrCat(jobs[0].name, ": ", chart.title);
  if (jobs.size() == 1 && !with_validations) chart.curves[0].name.clear();
  return chart;
}

}  // namespace nsa::client
