// The charts of `nsactl watch`: a job's curves so far, read from the coordinator as they grow.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/connect/client.h"
#include "client/show/curves.h"
#include "client/show/draw/chart_grid.h"

namespace nsa::client {

// For one thread.
class WatchCharts {
 public:
  // `client` outlives it. `id` is a job's id.
  WatchCharts(Client* client, std::string id) : client_(client), id_(std::move(id)) {}

  // Reads the curves of rank 0, at most once a second of `now`. A coordinator that does not answer,
  // or does not let this caller read, leaves the charts as they are.
  void Refresh(absl::Duration now);

  // Loss, throughput and so on, as many as there is room for (ChartGrid()); no line before the
  // second step. A metric that the job does not have is left out. From a coordinator that has no
  // curves, one line that says so.
  const std::vector<std::string>& Lines(const GridRoom& room);

 private:
  Client* const client_;
  const std::string id_;
  JobCurves curves_;
  std::string problem_;  // why there are none
  absl::Duration read_ = -absl::InfiniteDuration();
  // The lines as drawn last, and for what.
  std::vector<std::string> lines_;
  bool drawn_ = false;
  int drawn_columns_ = 0;
  int drawn_rows_ = 0;
};

}  // namespace nsa::client
