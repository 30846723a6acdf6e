#include "client/commands/view/watch_charts.h"

#include <utility>

#include "client/show/human.h"
#include "common/base/clean_text.h"

namespace nsa::client {
namespace {

constexpr absl::Duration kReadEvery = absl::Seconds(1);
// More than two in each column of a wide terminal.
constexpr int32_t kPoints = 512;

}  // namespace

void WatchCharts::Refresh(absl::Duration now) {
  if (now - read_ < kReadEvery) return;
  read_ = now;
  v1::GetCurvesRequest request = CurvesRequest(id_, NamesShown());
  request.set_points(kPoints);
  absl::StatusOr<v1::GetCurvesResponse> read = client_->Call<v1::GetCurvesResponse>(request);
  if (absl::IsUnimplemented(read.status())) problem_ = std::string(read.status().message());
  if (!read.ok()) return;  // it is read next time
  problem_.clear();
  curves_ = JobCurves(*std::move(read));
  drawn_ = false;
}

const std::vector<std::string>& WatchCharts::Lines(const GridRoom& room) {
  if (drawn_ && room.columns == drawn_columns_ && room.rows == drawn_rows_) return lines_;
  drawn_ = true;
  drawn_columns_ = room.columns;
  drawn_rows_ = room.rows;
  lines_.clear();
  if (!problem_.empty()) lines_.push_back(Clip(CleanLine("no charts: " + problem_), room.columns));
  if (curves_.points() < 2) return lines_;
  std::vector<Chart> charts;
  for (const Metric* metric : MetricsShown()) {
    Chart chart = ChartOf(*metric, Across::kSteps, {{"", &curves}});
    chart.title = metric->view.label;
    if (HasFinite(chart) || !NonfiniteNote(chart, "").empty()) charts.push_back(std::move(chart));
  }
  lines_ = ChartGrid(charts, room);
  return lines_;
}

}  // namespace nsa::client
