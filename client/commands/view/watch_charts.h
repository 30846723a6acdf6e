// The charts of `nsactl watch`: a job's curves so far, read from the coordinator as they grow.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/connect/client.h"
#include "client/show/curves.h"
#include "client/show/draw/chart_grid.h"

namespace nsa::client {

// Loss, throughput and so on, as many as there is room for (ChartGrid()); no line before the second
// step. A metric that the job does not have is left out. `problem`, why there are no curves, is a
// line of its own.
std::vector<std::string> ChartLines(const JobCurves& curves, const std::string& problem,
                                    const GridRoom& room);

// For one thread.
class WatchCharts {
 public:
  // `client` outlives it. `id` is a job's id.
  WatchCharts(Client* client, std::string id) : client_(client), id_(std::move(id)) {}

  // Reads what the curves of rank 0 have got since the last time, at most once a second of `now`
  // and not while the job stands at the same step. A coordinator that does not answer, or does not
  // let this caller read, leaves the charts as they are.
  void Refresh(absl::Duration now, const v1::JobProgress& progress);

  // What was read last, and why there is nothing (the coordinator has no curves), or empty.
  const JobCurves& curves() const { return curves_; }
  const std::string& problem() const { return problem_; }

  // ChartLines() of them, drawn only when they or the room have changed.
  const std::vector<std::string>& Lines(const GridRoom& room);

 private:
  Client* const client_;
  const std::string id_;
  JobCurves curves_;
  std::string problem_;
  absl::Duration read_ = -absl::InfiniteDuration();
  int64_t val_step_ = -1;  // the newest validation then
  // The lines as drawn last, and for what.
  std::vector<std::string> lines_;
  bool drawn_ = false;
  int drawn_columns_ = 0;
  int drawn_rows_ = 0;
};

}  // namespace nsa::client
