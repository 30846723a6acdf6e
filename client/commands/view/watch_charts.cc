#include "client/commands/view/watch_charts.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace nsa::client {
namespace {

constexpr absl::Duration kReadEvery = absl::Seconds(1);
// The most important ones first: what there is no room for is left out from the end.
constexpr std::array<const char*, 6> kShown = {
    "loss", "tokens_per_second", "grad_norm", "gate_entropy", "memory_bytes", "learning_rate"};

bool HasValue(const Chart& chart) {
  return std::ranges::any_of(chart.curves, [](const Curve& curve) {
    return std::ranges::any_of(curve.y, [](double y) { return std::isfinite(y); });
  });
}

}  // namespace

void WatchCharts::Refresh(absl::Duration now) {
  if (now - read_ < kReadEvery) return;
  read_ = now;
  v1::WatchRecordsRequest request;
  request.set_job(id_);
  request.set_rank(0);
  request.set_after_position(position_);
  const absl::Status read = client_->Stream<v1::WatchRecordsResponse>(
      request, [this](const v1::WatchRecordsResponse& record) {
        history_.Add(record);
        position_ = record.position();
        return true;
      });
  read.IgnoreError();  // what came is drawn, and the rest is read next time
}

const std::vector<std::string>& WatchCharts::Lines(const GridRoom& room) {
  if (position_ == drawn_position_ && room.columns == drawn_columns_ && room.rows == drawn_rows_) {
    return lines_;
  }
  drawn_position_ = position_;
  drawn_columns_ = room.columns;
  drawn_rows_ = room.rows;
  lines_.clear();
  if (history_.steps() < 2) return lines_;
  std::vector<Chart> charts;
  for (const char* name : kShown) {
    const Metric& metric = *FindMetric(name);
    Chart chart = ChartOf(metric, Across::kSteps, {{"", &history_}});
    chart.title = metric.title;
    if (HasValue(chart)) charts.push_back(std::move(chart));
  }
  lines_ = ChartGrid(charts, room);
  return lines_;
}

}  // namespace nsa::client
