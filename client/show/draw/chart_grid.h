// Several charts in a terminal, side by side and below each other. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/show/draw/chart.h"

namespace nsa::client {

struct GridRoom {
  int columns = 80;
  int rows = 24;
  bool unicode = true;
  bool colours = true;
};

// Lines of text, none wider than `room.columns` and not more than `room.rows`. A chart takes at
// least 46 columns and 10 rows; those for which there is no room are left out, the last ones first.
// Without room for one chart, or without a chart, there is no line.
std::vector<std::string> ChartGrid(const std::vector<Chart>& charts, const GridRoom& room);

}  // namespace nsa::client
