#include "client/show/draw/chart_grid.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/show/draw/text_chart.h"
#include "client/show/human.h"

namespace nsa::client {
namespace {

constexpr int kLeastColumns = 46;
constexpr int kLeastRows = 10;
constexpr int kMostRows = 18;
constexpr int kMostAcross = 3;
constexpr int kGap = 3;        // columns between two charts
constexpr int kFrameRows = 4;  // of a chart without its curves and names: title, axis and its texts

bool HasNames(const Chart& chart) {
  return std::ranges::any_of(chart.curves, [](const Curve& curve) { return !curve.name.empty(); });
}

// The chart as exactly `rows` lines.
std::vector<std::string> Block(const Chart& chart, int columns, int rows, const GridRoom& room) {
  const int frame = kFrameRows + (HasNames(chart) ? 1 : 0);
  std::vector<std::string> lines = TextChart(
      chart,
      {.columns = columns, .rows = rows - frame, .unicode = room.unicode, .colours = room.colours});
  lines.resize(rows);
  return lines;
}

}  // namespace

std::vector<std::string> ChartGrid(const std::vector<Chart>& charts, const GridRoom& room) {
  const int count = static_cast<int>(charts.size());
  const int across = std::min({(room.columns + kGap) / (kLeastColumns + kGap), kMostAcross, count});
  if (across < 1 || room.rows < kLeastRows) return {};
  const int down = std::min((room.rows + 1) / (kLeastRows + 1), (count + across - 1) / across);
  const int rows = std::min((room.rows + 1) / down - 1, kMostRows);
  const int columns = (room.columns + kGap) / across - kGap;
  std::vector<std::string> lines;
  for (int band = 0; band < down; ++band) {
    if (band > 0) lines.emplace_back();
    std::vector<std::string> joined(rows);
    for (int place = 0; place < across && band * across + place < count; ++place) {
      const auto block = Block(charts[band * across + place], columns, rows, room);
      const int left = place * (columns + kGap);
      for (int row = 0; row < rows; ++row) {
        if (block[row].empty()) continue;
        absl::StrAppend(&joined[row], std::string(left - DisplayWidth(joined[row]), ' '),
                        block[row]);
      }
    }
    lines.insert(lines.end(), joined.begin(), joined.end());
  }
  return lines;
}

}  // namespace nsa::client
