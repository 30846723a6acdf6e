#include "client/show/draw/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/show/draw/axis.h"
#include "client/show/draw/markup.h"
#include "client/show/draw/palette.h"
#include "client/show/human.h"

namespace nsa::client {
namespace {

struct Point {
  double x = 0;
  double y = 0;
};

enum class Rule { kGrid, kAxis, kKey };  // kKey: a curve's line in the legend
enum class Align { kStart, kMiddle, kEnd };

// The elements of the picture, in pixels from the top left corner.
class Picture {
 public:
  // `style` stands before the elements.
  explicit Picture(std::string style) : style_(std::move(style)) {}

  // The whole area, the title, and softly beside it what the values are.
  void Begin(int width, int height, const std::string& title, const std::string& note) {
    absl::StrAppendFormat(
        &svg_,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n%s",
        width, height, width, height, Markup(title), style_);
    absl::StrAppendFormat(&svg_, "<rect width=\"%d\" height=\"%d\" class=\"back\"/>\n", width,
                          height);
    absl::StrAppendFormat(&svg_,
                          "<text x=\"16\" y=\"24\" class=\"title\">%s<tspan class=\"note\" "
                          "dx=\"8\">%s</tspan></text>\n",
                          Markup(title), Markup(note));
  }

  // `y` is that of the baseline.
  void Text(Point at, Align align, const std::string& text) {
    Text(at,
         align == Align::kStart    ? "soft"
         : align == Align::kMiddle ? "soft middle"
                                   : "soft end",
         text);
  }

  // In the colour of a curve.
  void Name(Point at, int colour, const std::string& text) {
    Text(at, absl::StrCat("f", colour % kColours), text);
  }

  void Text(Point at, const std::string& style, const std::string& text) {
    absl::StrAppendFormat(&svg_, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", at.x, at.y,
                          style, Markup(text));
  }

  // `colour` counts only for kKey.
  void Line(Point from, Point to, Rule rule, int colour) {
    const std::string style = rule == Rule::kGrid   ? "grid"
                              : rule == Rule::kAxis ? "axis"
                                                    : absl::StrCat("l", colour % kColours);
    absl::StrAppendFormat(&svg_,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                          from.x, from.y, to.x, to.y, style);
  }

  void Dot(Point at, double radius, int colour) {
    absl::StrAppendFormat(&svg_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" class=\"f%d\"/>\n",
                          at.x, at.y, radius, colour % kColours);
  }

  // At least two points, from left to right. `manner`: "", " thin" or " pale".
  void Path(const std::vector<Point>& points, const char* manner, int colour) {
    absl::StrAppend(&svg_, "<polyline points=\"", Places(points), "\" class=\"l", colour % kColours,
                    manner, "\"/>\n");
  }

  // The area between two lines with the same x.
  void Band(const std::vector<Point>& upper, const std::vector<Point>& lower, int colour) {
    std::vector<Point> around = upper;
    around.insert(around.end(), lower.rbegin(), lower.rend());
    absl::StrAppend(&svg_, "<polygon points=\"", Places(around), "\" class=\"f", colour % kColours,
                    " band\"/>\n");
  }

  std::string Take() { return std::move(svg_) + "</svg>\n"; }

 private:
  static std::string Places(const std::vector<Point>& points) {
    std::string text;
    for (const Point& point : points) absl::StrAppendFormat(&text, "%.1f,%.1f ", point.x, point.y);
    text.pop_back();
    return text;
  }

  const std::string style_;
  std::string svg_;
};

constexpr size_t kMostPoints = 1000;
constexpr size_t kMostDots = 400;
constexpr int kLetter = 7;  // pixels of a letter, about
constexpr int kNameColumns = 40;
constexpr int kLine = 18;
constexpr char kNonfinite[] = "×";

struct Frame {
  double left = 0, right = 0, top = 0, bottom = 0;
  Axis x, y;

  double X(double value) const { return left + Place(x, value) * (right - left); }
  double Y(double value) const { return bottom - Place(y, value) * (bottom - top); }
  Point At(double px, double py) const { return {X(px), Y(py)}; }
};

// The names of the curves, on as many lines as they need below the title; returns how many.
int Legend(const Chart& chart, int width, Picture* picture) {
  double x = 16;
  int line = 0;
  if (chart.curves.size() == 1 && chart.curves[0].name.empty()) return 0;
  for (const Curve& curve : chart.curves) {
    const std::string name = LegendText(curve, chart.y_unit, kNameColumns);
    const double room = 22.0 + kLetter * DisplayWidth(name) + 14;
    if (x > 16 && x + room > width) {
      x = 16;
      ++line;
    }
    const double y = 44 + line * kLine;
    if (curve.dots) {
      picture->Dot({x + 7, y - 4}, 3, curve.colour);
    } else {
      picture->Line({x, y - 4}, {x + 14, y - 4}, Rule::kKey, curve.colour);
    }
    picture->Name({x + 20, y}, curve.colour, name);
    x += room;
  }
  return line + 1;
}

void Grid(const Chart& chart, const Frame& frame, Picture* picture) {
  for (const double tick : frame.y.ticks) {
    const double y = frame.Y(tick);
    picture->Line({frame.left, y}, {frame.right, y}, Rule::kGrid, 0);
    picture->Text({frame.left - 8, y + 4}, Align::kEnd, TickText(frame.y, tick));
  }
  for (const double tick : frame.x.ticks) {
    const double x = frame.X(tick);
    picture->Line({x, frame.bottom}, {x, frame.bottom + 4}, Rule::kAxis, 0);
    picture->Text({x, frame.bottom + 18}, Align::kMiddle, TickText(frame.x, tick));
  }
  picture->Line({frame.left, frame.bottom}, {frame.right, frame.bottom}, Rule::kAxis, 0);
  picture->Text({(frame.left + frame.right) / 2, frame.bottom + 36}, Align::kMiddle, chart.x_name);
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

// The mean of a noisy curve over the pale curve itself.
void DrawLine(const Curve& curve, const Frame& frame, Picture* picture) {
  const std::vector<Bucket> buckets = Thin(curve, kMostPoints);
  const std::vector<Bucket> means = RunningMean(buckets);
  const bool band = !curve.least.empty() || buckets.size() < curve.x.size();
  for (const auto& [from, to] : Runs(buckets)) {
    if (to - from == 1) {  // a line of one point is invisible
      picture->Dot(frame.At(buckets[from].x, buckets[from].mean), 2, curve.colour);
      continue;
    }
    std::vector<Point> upper, lower, line, mean;
    for (size_t i = from; i < to; ++i) {
      if (!means.empty()) mean.push_back(frame.At(means[i].x, means[i].mean));
      line.push_back(frame.At(buckets[i].x, buckets[i].mean));
      upper.push_back(frame.At(buckets[i].x, buckets[i].greatest));
      lower.push_back(frame.At(buckets[i].x, buckets[i].least));
    }
    if (band) picture->Band(upper, lower, curve.colour);
    picture->Path(line, curve.dots ? " thin" : means.empty() ? "" : " pale", curve.colour);
    if (!means.empty()) picture->Path(mean, "", curve.colour);
  }
}

void DrawDots(const Curve& curve, const Frame& frame, Picture* picture) {
  for (const Bucket& bucket : Thin(curve, kMostDots)) {
    if (!std::isfinite(bucket.mean)) continue;
    picture->Dot(frame.At(bucket.x, bucket.mean), 3, curve.colour);
  }
}

// A cross on the axis below the points that have values without a place.
void DrawNonfinite(const Curve& curve, const Frame& frame, Picture* picture) {
  for (const Bucket& bucket : Thin(curve, kMostDots)) {
    if (bucket.nonfinite == 0) continue;
    picture->Text({frame.X(bucket.x), frame.bottom + 4}, Align::kMiddle, kNonfinite);
  }
}

// Softly beside the title: what the values are, and which are not in the picture.
std::string NoteOf(const Chart& chart, const Axis& y) {
  std::vector<std::string> parts;
  for (const std::string& part :
       {chart.note, y.above == 0 ? "" : absl::StrCat("▲ up to ", ValueText(y.above, y.unit)),
        NonfiniteNote(chart, kNonfinite)}) {
    if (!part.empty()) parts.push_back(part);
  }
  return absl::StrJoin(parts, "; ");
}

void DrawChart(const Chart& chart, int width, int height, Picture* picture) {
  const int names = chart.curves.size() == 1 && chart.curves[0].name.empty() ? 0 : 1;
  const int ticks = std::max(2, (height - 88 - kLine * names) / 32);
  Frame frame{.left = 72, .right = width - 24.0, .y = VerticalAxis(chart, ticks)};
  picture->Begin(width, height, chart.title, NoteOf(chart, frame.y));
  frame.top = 40.0 + kLine * Legend(chart, width, picture);
  frame.bottom = std::max(frame.top + 20, height - 48.0);
  if (!HasFinite(chart)) {
    picture->Text({width / 2.0, (frame.top + frame.bottom) / 2}, Align::kMiddle,
                  NonfiniteNote(chart, "").empty() ? "no values yet" : "no finite values");
    return;
  }
  frame.x = HorizontalAxis(chart, std::max(2, width / 85));
  Grid(chart, frame, picture);
  for (const Curve& curve : chart.curves) DrawLine(curve, frame, picture);
  for (const Curve& curve : chart.curves) {
    if (curve.dots) DrawDots(curve, frame, picture);
    DrawNonfinite(curve, frame, picture);
  }
}

std::string Element(const Chart& chart, int width, int height, std::string style) {
  Picture picture(std::move(style));
  DrawChart(chart, width, height, &picture);
  return picture.Take();
}

}  // namespace

std::string SvgStyle() {
  const auto colours = [](const Palette& palette) {
    std::string css = absl::StrCat(
        ".chart .back{fill:", palette.back, "}.chart .title{fill:", palette.ink,
        "}.chart .soft,.chart .note{fill:", palette.soft, "}.chart .grid{stroke:", palette.grid,
        "}.chart .axis{stroke:", palette.soft, "}");
    for (int i = 0; i < kColours; ++i) {
      absl::StrAppend(&css, ".chart .l", i, "{stroke:", palette.curves[i], "}.chart .f", i,
                      "{fill:", palette.curves[i], "}");
    }
    return css;
  };
  return absl::StrCat(
      ".chart{font:12px system-ui,'DejaVu Sans',sans-serif}.chart .title{font-weight:600;"
      "font-size:14px}.chart .note{font-weight:400;font-size:12px}.chart "
      ".end{text-anchor:end}.chart .middle{text-anchor:middle}"
      ".chart polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}"
      ".chart line{stroke-width:1}.chart line[class^=l]{stroke-width:2.5}.chart .band{opacity:.22}"
      ".chart polyline.thin{stroke-width:1;opacity:.7}.chart "
      "polyline.pale{stroke-width:1;opacity:.35}",
      colours(kLight), "@media (prefers-color-scheme:dark){", colours(kDark), "}");
}

std::string SvgChart(const Chart& chart, int width, int height) {
  return Element(chart, width, height, "");
}

std::string SvgFile(const std::vector<Chart>& charts, int width, int height) {
  const std::string style = absl::StrCat("<style>", SvgStyle(), "</style>\n");
  if (charts.size() == 1) return Element(charts[0], width, height, style);
  const int all = height * static_cast<int>(charts.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
      "%d\">\n%s",
      width, all, width, all, style);
  for (size_t i = 0; i < charts.size(); ++i) {
    absl::StrAppend(&svg, "<g transform=\"translate(0,", height * i, ")\">\n",
                    Element(charts[i], width, height, ""), "</g>\n");
  }
  return svg + "</svg>\n";
}

}  // namespace nsa::client
