#include "client/commands/view/watch_charts.h"

#include <utility>

#include "client/show/human.h"
#include "common/base/clean_text.h"

namespace nsa::client {
namespace {

constexpr absl::Duration kReadEvery = absl::Seconds(1);
// More than two in each column of a wide terminal.
constexpr int32_t kPoints = 512;
// What has come since is not thinned; from here on all is read again.
constexpr size_t kMostPoints = 2 * kPoints;

}  // namespace

void WatchCharts::Refresh(absl::Duration now, const v1::JobProgress& progress) {
  if (now - read_ < kReadEvery) return;
  const bool same = curves_.last_step() == progress.step() && progress.val_step() == val_step_;
  if (same && curves_.points() > 0) return;
  read_ = now;
  v1::GetCurvesRequest request = CurvesRequest(id_, NamesShown());
  request.set_points(kPoints);
  const bool more = curves_.points() > 0 && curves_.points() < kMostPoints;
  absl::StatusOr<v1::GetCurvesResponse> read =
      client_->Call<v1::GetCurvesResponse>(more ? curves_.RequestForMore(request) : request);
  const bool added = read.ok() && more && curves_.Add(*read);
  if (read.ok() && more && !added) read = client_->Call<v1::GetCurvesResponse>(request);
  if (absl::IsUnimplemented(read.status())) problem_ = std::string(read.status().message());
  if (!read.ok()) return;  // it is read next time
  if (!added) curves_ = JobCurves(*std::move(read));
  problem_.clear();
  val_step_ = progress.val_step();
  drawn_ = false;
}

const std::vector<std::string>& WatchCharts::Lines(const GridRoom& room) {
  if (drawn_ && room.columns == drawn_columns_ && room.rows == drawn_rows_) return lines_;
  drawn_ = true;
  drawn_columns_ = room.columns;
  drawn_rows_ = room.rows;
  lines_ = ChartLines(curves_, problem_, room);
  return lines_;
}

std::vector<std::string> ChartLines(const JobCurves& curves, const std::string& problem,
                                    const GridRoom& room) {
  if (!problem.empty())
    return {Shorten(CleanLine("no charts: " + problem), room.columns, room.unicode)};
  if (curves.points() < 2) return {};
  std::vector<Chart> charts;
  for (const Metric* metric : MetricsShown()) {
    Chart chart = ChartOf(*metric, Across::kSteps, {{"", &curves}});
    chart.title = metric->view.label;
    if (HasFinite(chart) || !NonfiniteNote(chart, "").empty()) charts.push_back(std::move(chart));
  }
  return ChartGrid(charts, room);
}

}  // namespace nsa::client
