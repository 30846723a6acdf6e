#include "client/show/curves.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nsa::client {
namespace {

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kValidationLoss = "val_loss";  // not a column
constexpr int64_t kRecent = 50;

// Null when the column was not asked for.
const v1::CurveColumn* ColumnIn(const v1::CurveTable& table, std::string_view name) {
  const auto found = std::ranges::find_if(
      table.columns(), [&](const v1::CurveColumn& column) { return column.name() == name; });
  return found == table.columns().end() ? nullptr : &*found;
}

int64_t NonfiniteAt(const v1::CurveColumn& column, int point) {
  return point < column.nonfinite_size() ? column.nonfinite(point) : 0;
}

// The shortest decimal that is the same float, as in the page's API: 5.95 rather than 5.94999981.
double Shortest(float value) {
  if (!std::isfinite(value)) return value;
  std::array<char, 32> digits;
  const auto written = std::to_chars(digits.begin(), digits.end(), value);
  double read = value;
  std::from_chars(digits.begin(), written.ptr, read);
  return read;
}

// A point stands for the mean of several steps of a rank; for several layers, see Quantity::keep,
// as in the page's maps.
float Kept(const Metric& metric, const v1::CurveColumn& column, int point) {
  const record::Keep keep = metric.of() == record::Of::kLayer ? metric.keep : record::Keep::kMean;
  if (keep == record::Keep::kGreatest) return column.greatest(point);
  return keep == record::Keep::kLeast ? column.least(point) : column.mean(point);
}

void AddPoint(const Metric& metric, const v1::CurveColumn& column, int point, double x,
              Curve* curve) {
  const int64_t nonfinite = NonfiniteAt(column, point);
  if (column.count(point) == 0 && nonfinite == 0) return;  // not measured
  curve->x.push_back(x);
  curve->y.push_back(Shortest(Kept(metric, column, point)));
  curve->least.push_back(Shortest(column.least(point)));
  curve->greatest.push_back(Shortest(column.greatest(point)));
  curve->nonfinite.push_back(nonfinite);
}

// The place of `at` on the line through (x1, y1) and (x2, y2).
double Between(int64_t at, int64_t x1, double y1, int64_t x2, double y2) {
  if (at >= x2 || x2 <= x1) return y2;
  return y1 + (y2 - y1) * static_cast<double>(at - x1) / static_cast<double>(x2 - x1);
}

}  // namespace

const std::vector<const Metric*>& Metrics() {
  static const auto* const kMetrics = [] {
    auto* const metrics = new std::vector<const Metric*>();
    for (const Metric& metric : record::kQuantities) {
      if (metric.curve || metric.name == kValidationLoss) metrics->push_back(&metric);
    }
    return metrics;
  }();
  return *kMetrics;
}

const std::vector<const Metric*>& MetricsShown() {
  static const auto* const kShown = [] {
    auto* const shown = new std::vector<const Metric*>();
    std::ranges::copy_if(Metrics(), std::back_inserter(*shown),
                         [](const Metric* metric) { return metric->view.chart > 0; });
    std::ranges::sort(*shown, {}, [](const Metric* metric) { return metric->view.chart; });
    return shown;
  }();
  return *kShown;
}

const std::vector<std::string_view>& NamesShown() {
  static const auto* const kNames = [] {
    auto* const names = new std::vector<std::string_view>();
    for (const Metric* metric : MetricsShown()) names->emplace_back(metric->name);
    return names;
  }();
  return *kNames;
}

const Metric* FindMetric(std::string_view name) {
  const auto found =
      std::ranges::find(Metrics(), name, [](const Metric* m) { return std::string_view(m->name); });
  return found != Metrics().end() ? *found : nullptr;
}

std::string MetricNames() {
  return absl::StrJoin(Metrics(), ", ", [](std::string* text, const Metric* metric) {
    absl::StrAppend(text, metric->name);
  });
}

std::optional<Across> FindAcross(std::string_view name) {
  if (name == "steps") return Across::kSteps;
  if (name == "tokens") return Across::kTokens;
  if (name == "time") return Across::kTime;
  return std::nullopt;
}

v1::GetCurvesRequest CurvesRequest(const std::string& job,
                                   const std::vector<std::string_view>& metrics) {
  v1::GetCurvesRequest request;
  request.set_job(job);
  request.add_columns("step_seconds");  // for the time that a restart took
  for (const std::string_view name : metrics) {
    const bool known = name == kValidationLoss || name == request.columns(0);
    if (!known) request.add_columns(std::string(name));
  }
  return request;
}

namespace {

// Replaces what is after the first `kept` entries. Entries that are not there are 0.
template <typename Field>
void Replace(int kept, const Field& with, int count, Field* field) {
  field->Resize(kept, 0);
  field->MergeFrom(with);
  field->Resize(kept + count, 0);
}

// Replaces the points from the first of `more` on. False when that is none of the table's.
bool AddPoints(const v1::CurveTable& more, v1::CurveTable* table) {
  if (table->first_step().empty()) {
    *table = more;
    return true;
  }
  if (more.first_step().empty() || more.columns_size() != table->columns_size()) return false;
  const auto same = std::ranges::lower_bound(table->first_step(), more.first_step(0));
  if (same == table->first_step().end() || *same != more.first_step(0)) return false;
  const int kept = static_cast<int>(same - table->first_step().begin());
  const int count = more.first_step_size();
  Replace(kept, more.first_step(), count, table->mutable_first_step());
  Replace(kept, more.last_step(), count, table->mutable_last_step());
  Replace(kept, more.unix_nanos(), count, table->mutable_unix_nanos());
  Replace(kept, more.total_tokens(), count, table->mutable_total_tokens());
  for (int i = 0; i < more.columns_size(); ++i) {
    const v1::CurveColumn& from = more.columns(i);
    v1::CurveColumn* const column = table->mutable_columns(i);
    Replace(kept, from.count(), count, column->mutable_count());
    Replace(kept, from.nonfinite(), count, column->mutable_nonfinite());
    Replace(kept, from.mean(), count, column->mutable_mean());
    Replace(kept, from.least(), count, column->mutable_least());
    Replace(kept, from.greatest(), count, column->mutable_greatest());
  }
  return true;
}

}  // namespace

JobCurves::JobCurves(v1::GetCurvesResponse curves) : curves_(std::move(curves)) { CountSeconds(); }

v1::GetCurvesRequest JobCurves::RequestForMore(v1::GetCurvesRequest request) const {
  // The newest point of each table may still grow.
  int64_t from = 0;
  for (const v1::CurveTable* table : {&curves_.steps(), &curves_.layers(), &curves_.gpus()}) {
    if (table->first_step().empty()) continue;
    const int64_t newest = *table->first_step().rbegin();
    from = from == 0 ? newest : std::min(from, newest);
  }
  request.set_from_step(from);
  return request;
}

bool JobCurves::Add(const v1::GetCurvesResponse& more) {
  const bool same_starts = std::ranges::equal(more.start_unix_nanos(), curves_.start_unix_nanos());
  v1::GetCurvesResponse all = curves_;
  if (!same_starts || !AddPoints(more.steps(), all.mutable_steps()) ||
      !AddPoints(more.layers(), all.mutable_layers()) ||
      !AddPoints(more.gpus(), all.mutable_gpus())) {
    return false;
  }
  *all.mutable_validations() = more.validations();
  curves_ = std::move(all);
  CountSeconds();
  return true;
}

void JobCurves::CountSeconds() {
  seconds_.clear();
  double seconds = 0;
  for (int point = 0; point < curves_.steps().last_step_size(); ++point) {
    seconds += SecondsBefore(point);
    seconds_.push_back(seconds);
  }
}

// The time of training from the end of the point before, or from the first step, to the end of this
// point.
double JobCurves::SecondsBefore(int point) const {
  const v1::CurveTable& steps = curves_.steps();
  const v1::CurveColumn* const column = ColumnIn(steps, "step_seconds");
  const double each = column == nullptr || column->count(point) == 0 ? 0 : column->mean(point);
  if (point == 0) return each * static_cast<double>(steps.last_step(0) - steps.first_step(0));
  const int64_t before = steps.unix_nanos(point - 1);
  const int64_t now = steps.unix_nanos(point);
  const auto& starts = curves_.start_unix_nanos();
  const bool restarted =
      std::ranges::any_of(starts, [&](int64_t start) { return before < start && start <= now; });
  if (restarted)
    return each * static_cast<double>(steps.last_step(point) - steps.last_step(point - 1));
  return std::max(static_cast<double>(now - before) / 1e9, 0.0);
}

double JobCurves::PlaceOf(int64_t step, Across across) const {
  const v1::CurveTable& steps = curves_.steps();
  if (across == Across::kSteps || points() == 0) return static_cast<double>(step);
  const auto end = [&](int point) {
    return across == Across::kTime ? seconds_[point]
                                   : static_cast<double>(steps.total_tokens(point));
  };
  const auto found = std::ranges::lower_bound(steps.last_step(), step);
  const int last = static_cast<int>(points()) - 1;
  const int point = std::min(static_cast<int>(found - steps.last_step().begin()), last);
  if (point > 0) {
    return Between(step, steps.last_step(point - 1), end(point - 1), steps.last_step(point),
                   end(point));
  }
  // Tokens are counted from before the first step, seconds from its end.
  const int64_t from = across == Across::kTime ? steps.first_step(0) : 0;
  return Between(std::max(step, from), from, 0, steps.last_step(0), end(0));
}

Curve JobCurves::CurveOf(const Metric& metric, Across across) const {
  Curve curve;
  if (metric.name == kValidationLoss) {
    curve.dots = true;
    if (across != Across::kSteps && points() == 0) return curve;
    const v1::ValidationCurve& all = curves_.validations();
    for (int i = 0; i < all.step_size(); ++i) {
      curve.x.push_back(PlaceOf(all.step(i), across));
      curve.y.push_back(all.loss(i));
    }
    return curve;
  }
  for (const v1::CurveTable* table : {&curves_.steps(), &curves_.layers(), &curves_.gpus()}) {
    const v1::CurveColumn* const column = ColumnIn(*table, metric.name);
    if (column == nullptr) continue;
    for (int point = 0; point < table->last_step_size(); ++point) {
      AddPoint(metric, *column, point, PlaceOf(table->last_step(point), across), &curve);
    }
  }
  return curve;
}

std::optional<JobCurves::Evaluation> JobCurves::Newest() const {
  const v1::ValidationCurve& all = curves_.validations();
  const int count = all.step_size();
  if (count == 0) return std::nullopt;
  return Evaluation{.step = all.step(count - 1), .loss = all.loss(count - 1)};
}

std::optional<JobCurves::Evaluation> JobCurves::Best() const {
  std::optional<Evaluation> best;
  const v1::ValidationCurve& all = curves_.validations();
  for (int i = 0; i < all.step_size(); ++i) {
    const bool better = !best.has_value() || all.loss(i) < best->loss;
    if (std::isfinite(all.loss(i)) && better) best = {.step = all.step(i), .loss = all.loss(i)};
  }
  return best;
}

std::optional<JobCurves::Recent> JobCurves::RecentLoss() const {
  const v1::CurveColumn* const loss = ColumnIn(curves_.steps(), kLoss);
  if (loss == nullptr || points() == 0) return std::nullopt;
  double sum = 0;
  int64_t finite = 0;
  int64_t steps = 0;
  for (int point = loss->count_size() - 1; point >= 0 && steps < kRecent; --point) {
    const int64_t count = loss->count(point);
    if (count > 0) sum += static_cast<double>(loss->mean(point)) * static_cast<double>(count);
    finite += count;
    steps += count + NonfiniteAt(*loss, point);
  }
  return Recent{.loss = finite == 0 ? kMissing : sum / static_cast<double>(finite), .steps = steps};
}

double JobCurves::MedianSpeed() const {
  const v1::CurveColumn* const column = ColumnIn(curves_.steps(), kSpeed);
  std::vector<double> speeds;
  for (int point = 0; column != nullptr && point < column->count_size(); ++point) {
    if (column->count(point) > 0) speeds.push_back(Shortest(column->mean(point)));
  }
  if (speeds.empty()) return kMissing;
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  return *middle;
}

int64_t JobCurves::PeakMemory() const {
  const v1::CurveColumn* const column = ColumnIn(curves_.steps(), kMemory);
  float most = 0;
  for (int point = 0; column != nullptr && point < column->count_size(); ++point) {
    if (column->count(point) > 0) most = std::max(most, column->greatest(point));
  }
  return static_cast<int64_t>(most);
}

v1::WorkerStarted JobCurves::Started() const {
  const auto& marks = curves_.marks();
  const auto found = std::ranges::find_if(marks, &v1::WorkerRecord::has_started);
  return found == marks.end() ? v1::WorkerStarted() : found->started();
}

std::vector<v1::SampleRecord> JobCurves::Samples() const {
  std::vector<v1::SampleRecord> samples;
  for (const v1::WorkerRecord& mark : curves_.marks()) {
    if (mark.has_sample()) samples.push_back(mark.sample());
  }
  return samples;
}

std::vector<v1::WorkerRecord> JobCurves::FailedCheckpoints() const {
  std::vector<v1::WorkerRecord> failed;
  for (const v1::WorkerRecord& mark : curves_.marks()) {
    if (mark.has_checkpoint()) failed.push_back(mark);
  }
  return failed;
}

namespace {

Unit UnitOf(record::View::Kind kind) {
  if (kind == record::View::kBytes) return Unit::kBytes;
  return kind == record::View::kSeconds ? Unit::kSeconds : Unit::kNumber;
}

// "0 to 1, mean of the layers".
std::string NoteOf(const Metric& metric) {
  if (metric.of() != record::Of::kLayer && metric.of() != record::Of::kGpu) return metric.view.note;
  const char* const kept = metric.keep == record::Keep::kGreatest ? "greatest"
                           : metric.keep == record::Keep::kLeast  ? "least"
                                                                  : "mean";
  const char* const whose = metric.of() == record::Of::kLayer ? " of the layers" : " of the GPUs";
  return absl::StrCat(metric.view.note, *metric.view.note == '\0' ? "" : ", ", kept, whose);
}

}  // namespace

Chart ChartOf(const Metric& metric, Across across, const std::vector<NamedCurves>& jobs) {
  Chart chart{.title = metric.view.label,
              .note = NoteOf(metric),
              .y_unit = UnitOf(metric.view.kind),
              .from_zero = metric.view.from_zero,
              .spikes = metric.view.spikes};
  chart.x_name = across == Across::kSteps    ? "step"
                 : across == Across::kTokens ? "tokens"
                                             : "time of training";
  if (across == Across::kTime) chart.x_unit = Unit::kSeconds;
  for (const NamedCurves& job : jobs) {
    Curve curve = job.curves->CurveOf(metric, across);
    curve.name = job.name;
    curve.colour = static_cast<int>(chart.curves.size());
    chart.curves.push_back(std::move(curve));
  }
  const bool with_validations =
      jobs.size() == 1 && metric.name == kLoss && jobs[0].curves->Newest().has_value();
  if (with_validations) {
    chart.title = metric.view.brief;
    chart.curves[0].name = "training";
    Curve curve = jobs[0].curves->CurveOf(*FindMetric(kValidationLoss), across);
    curve.name = "validation";
    curve.colour = 1;
    chart.curves.push_back(std::move(curve));
  }
  if (jobs.size() == 1) chart.title = absl::StrCat(jobs[0].name, ": ", chart.title);
  if (jobs.size() == 1 && !with_validations) chart.curves[0].name.clear();
  return chart;
}

}  // namespace nsa::client
