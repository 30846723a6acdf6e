#include "client/show/draw/drawing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/show/draw/axis.h"
#include "client/show/human.h"

namespace nsa::client {
namespace {

constexpr size_t kMostPoints = 1000;
constexpr size_t kMostDots = 400;
constexpr int kLetter = 7;  // pixels of a letter, about
constexpr int kNameColumns = 40;
constexpr int kLine = 18;

struct Frame {
  double left = 0, right = 0, top = 0, bottom = 0;
  Axis x, y;

  double X(double value) const { return left + Place(x, value) * (right - left); }
  double Y(double value) const { return bottom - Place(y, value) * (bottom - top); }
  Point At(double px, double py) const { return {X(px), Y(py)}; }
};

// The names of the curves, on as many lines as they need below the title; returns how many.
int Legend(const Chart& chart, int width, Surface* surface) {
  double x = 16;
  int line = 0;
  if (chart.curves.size() == 1 && chart.curves[0].name.empty()) return 0;
  for (const Curve& curve : chart.curves) {
    const std::string name = Clip(curve.name, kNameColumns);
    const double room = 22.0 + kLetter * DisplayWidth(name) + 14;
    if (x > 16 && x + room > width) {
      x = 16;
      ++line;
    }
    const double y = 44 + line * kLine;
    if (curve.dots) {
      surface->Dot({x + 7, y - 4}, 3, curve.colour);
    } else {
      surface->Line({x, y - 4}, {x + 14, y - 4}, Rule::kKey, curve.colour);
    }
    surface->Text({x + 20, y}, Align::kStart, name);
    x += room;
  }
  return line + 1;
}

void Grid(const Chart& chart, const Frame& frame, Surface* surface) {
  for (const double tick : frame.y.ticks) {
    const double y = frame.Y(tick);
    surface->Line({frame.left, y}, {frame.right, y}, Rule::kGrid, 0);
    surface->Text({frame.left - 8, y + 4}, Align::kEnd, TickText(frame.y, tick));
  }
  for (const double tick : frame.x.ticks) {
    const double x = frame.X(tick);
    surface->Line({x, frame.bottom}, {x, frame.bottom + 4}, Rule::kAxis, 0);
    surface->Text({x, frame.bottom + 18}, Align::kMiddle, TickText(frame.x, tick));
  }
  surface->Line({frame.left, frame.bottom}, {frame.right, frame.bottom}, Rule::kAxis, 0);
  surface->Text({(frame.left + frame.right) / 2, frame.bottom + 36}, Align::kMiddle, chart.x_name);
}

// The runs of buckets that have a value, each as [from, to).
std::vector<std::pair<size_t, size_t>> Runs(const std::vector<Bucket>& buckets) {
  std::vector<std::pair<size_t, size_t>> runs;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!std::isfinite(buckets[i].mean)) continue;
    if (runs.empty() || runs.back().second != i) runs.emplace_back(i, i);
    runs.back().second = i + 1;
  }
  return runs;
}

void DrawLine(const Curve& curve, const Frame& frame, Surface* surface) {
  const std::vector<Bucket> buckets = Thin(curve, kMostPoints);
  const bool band = buckets.size() < curve.x.size();
  for (const auto& [from, to] : Runs(buckets)) {
    if (to - from == 1) {  // a line of one point is invisible
      surface->Dot(frame.At(buckets[from].x, buckets[from].mean), 2, curve.colour);
      continue;
    }
    std::vector<Point> upper, lower, line;
    for (size_t i = from; i < to; ++i) {
      line.push_back(frame.At(buckets[i].x, buckets[i].mean));
      upper.push_back(frame.At(buckets[i].x, buckets[i].greatest));
      lower.push_back(frame.At(buckets[i].x, buckets[i].least));
    }
    if (band) surface->Band(upper, lower, curve.colour);
    surface->Path(line, curve.dots, curve.colour);
  }
}

void DrawDots(const Curve& curve, const Frame& frame, Surface* surface) {
  for (const Bucket& bucket : Thin(curve, kMostDots)) {
    if (!std::isfinite(bucket.mean)) continue;
    surface->Dot(frame.At(bucket.x, bucket.mean), 3, curve.colour);
  }
}

bool HasValue(const Chart& chart) {
  return std::ranges::any_of(chart.curves, [](const Curve& curve) {
    return std::ranges::any_of(curve.y, [](double y) { return std::isfinite(y); });
  });
}

}  // namespace

void DrawChart(const Chart& chart, int width, int height, Surface* surface) {
  surface->Begin(width, height, chart.title, chart.note);
  const int lines = Legend(chart, width, surface);
  Frame frame{.left = 72, .right = width - 24.0, .top = 40.0 + kLine * lines};
  frame.bottom = std::max(frame.top + 20, height - 48.0);
  if (!HasValue(chart)) {
    surface->Text({width / 2.0, (frame.top + frame.bottom) / 2}, Align::kMiddle, "no values yet");
    return;
  }
  frame.x = HorizontalAxis(chart, std::max(2, width / 85));
  frame.y = VerticalAxis(chart, std::max(2, static_cast<int>(frame.bottom - frame.top) / 32));
  Grid(chart, frame, surface);
  for (const Curve& curve : chart.curves) DrawLine(curve, frame, surface);
  for (const Curve& curve : chart.curves) {
    if (curve.dots) DrawDots(curve, frame, surface);
  }
}

}  // namespace nsa::client
