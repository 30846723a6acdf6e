#include "client/show/draw/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/show/draw/axis.h"
#include "client/show/draw/markup.h"
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
};

std::string Text(double x, double y, const char* style, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, y, style,
                         Markup(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                         x1, y1, x2, y2, style);
}

std::string Dot(double x, double y, double radius, int colour) {
  return absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" class=\"f%d\"/>\n", x, y,
                         radius, colour % kColours);
}

// The names of the curves, on as many lines as they need below the title; returns how many.
int Legend(const Chart& chart, int width, std::string* svg) {
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
    *svg += curve.dots
                ? Dot(x + 7, y - 4, 3, curve.colour)
                : Line(x, y - 4, x + 14, y - 4, absl::StrCat("l", curve.colour % kColours).c_str());
    *svg += Text(x + 20, y, "soft", name);
    x += room;
  }
  return line + 1;
}

void Grid(const Chart& chart, const Frame& frame, std::string* svg) {
  for (const double tick : frame.y.ticks) {
    const double y = frame.Y(tick);
    *svg += Line(frame.left, y, frame.right, y, "grid");
    *svg += Text(frame.left - 8, y + 4, "soft end", TickText(frame.y, tick));
  }
  for (const double tick : frame.x.ticks) {
    const double x = frame.X(tick);
    *svg += Line(x, frame.bottom, x, frame.bottom + 4, "axis");
    *svg += Text(x, frame.bottom + 18, "soft middle", TickText(frame.x, tick));
  }
  *svg += Line(frame.left, frame.bottom, frame.right, frame.bottom, "axis");
  *svg += Text((frame.left + frame.right) / 2, frame.bottom + 36, "soft middle", chart.x_name);
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

void DrawLine(const Curve& curve, const Frame& frame, std::string* svg) {
  const std::vector<Bucket> buckets = Thin(curve, kMostPoints);
  const bool band = buckets.size() < curve.x.size();
  const int colour = curve.colour % kColours;
  for (const auto& [from, to] : Runs(buckets)) {
    if (to - from == 1) {  // a line of one point is invisible
      *svg += Dot(frame.X(buckets[from].x), frame.Y(buckets[from].mean), 2, colour);
      continue;
    }
    std::string upper, lower, line;
    for (size_t i = from; i < to; ++i) {
      const double x = frame.X(buckets[i].x);
      absl::StrAppendFormat(&line, "%.1f,%.1f ", x, frame.Y(buckets[i].mean));
      if (!band) continue;
      absl::StrAppendFormat(&upper, "%.1f,%.1f ", x, frame.Y(buckets[i].greatest));
      lower = absl::StrFormat("%.1f,%.1f ", x, frame.Y(buckets[i].least)) + lower;
    }
    line.pop_back();
    if (band) {
      lower.pop_back();
      absl::StrAppend(svg, "<polygon points=\"", upper, lower, "\" class=\"f", colour,
                      " band\"/>\n");
    }
    absl::StrAppend(svg, "<polyline points=\"", line, "\" class=\"l", colour,
                    curve.dots ? " thin" : "", "\"/>\n");
  }
}

void DrawDots(const Curve& curve, const Frame& frame, std::string* svg) {
  for (const Bucket& bucket : Thin(curve, kMostDots)) {
    if (!std::isfinite(bucket.mean)) continue;
    *svg += Dot(frame.X(bucket.x), frame.Y(bucket.mean), 3, curve.colour);
  }
}

bool HasValue(const Chart& chart) {
  return std::ranges::any_of(chart.curves, [](const Curve& curve) {
    return std::ranges::any_of(curve.y, [](double y) { return std::isfinite(y); });
  });
}

std::string Element(const Chart& chart, int width, int height, const std::string& style) {
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"%d\" height=\"%d\" "
      "viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n%s",
      width, height, width, height, Markup(chart.title), style);
  absl::StrAppendFormat(&svg, "<rect width=\"%d\" height=\"%d\" class=\"back\"/>\n", width, height);
  absl::StrAppendFormat(
      &svg,
      "<text x=\"16\" y=\"24\" class=\"title\">%s<tspan class=\"note\" dx=\"8\">%s"
      "</tspan></text>\n",
      Markup(chart.title), Markup(chart.note));
  const int lines = Legend(chart, width, &svg);
  Frame frame{.left = 72, .right = width - 24.0, .top = 40.0 + kLine * lines};
  frame.bottom = std::max(frame.top + 20, height - 48.0);
  if (!HasValue(chart)) {
    svg += Text(width / 2.0, (frame.top + frame.bottom) / 2, "soft middle", "no values yet");
    return svg + "</svg>\n";
  }
  frame.x = HorizontalAxis(chart, std::max(2, width / 85));
  frame.y = VerticalAxis(chart, std::max(2, static_cast<int>(frame.bottom - frame.top) / 32));
  Grid(chart, frame, &svg);
  for (const Curve& curve : chart.curves) {
    DrawLine(curve, frame, &svg);
  }
  for (const Curve& curve : chart.curves) {
    if (curve.dots) DrawDots(curve, frame, &svg);
  }
  return svg + "</svg>\n";
}

}  // namespace

std::string SvgStyle() {
  // Those of the live page (server/web/page/style.css).
  static constexpr std::array<const char*, kColours> kLight = {
      "#2f5fd0", "#d1660a", "#1f8a4c", "#7d4cc0", "#bf3b3f", "#14808f", "#b83f83", "#6b7480"};
  static constexpr std::array<const char*, kColours> kDark = {
      "#7aa5f5", "#f0994e", "#56c288", "#b18cf0", "#f0797a", "#4fbccb", "#e884b8", "#9aa3ae"};
  const auto colours = [](const std::array<const char*, kColours>& list, const char* back,
                          const char* ink, const char* soft, const char* grid) {
    std::string css =
        absl::StrCat(".chart .back{fill:", back, "}.chart .title{fill:", ink,
                     "}.chart .soft,.chart .note{fill:", soft, "}.chart .grid{stroke:", grid,
                     "}.chart .axis{stroke:", soft, "}");
    for (int i = 0; i < kColours; ++i) {
      absl::StrAppend(&css, ".chart .l", i, "{stroke:", list[i], "}.chart .f", i, "{fill:", list[i],
                      "}");
    }
    return css;
  };
  return absl::StrCat(
      ".chart{font:12px system-ui,'DejaVu Sans',sans-serif}.chart .title{font-weight:600;"
      "font-size:14px}.chart .note{font-weight:400;font-size:12px}.chart "
      ".end{text-anchor:end}.chart .middle{text-anchor:middle}"
      ".chart polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}"
      ".chart line{stroke-width:1}.chart line[class^=l]{stroke-width:2.5}.chart .band{opacity:.22}"
      ".chart polyline.thin{stroke-width:1;opacity:.7}",
      colours(kLight, "#ffffff", "#1a1d21", "#5f6772", "#e6e9ed"),
      "@media (prefers-color-scheme:dark){",
      colours(kDark, "#16191d", "#e5e8ec", "#9aa3ae", "#2a2f36"), "}");
}

std::string SvgChart(const Chart& chart, int width, int height) {
  return Element(chart, width, height, "");
}

std::string SvgFile(const Chart& chart, int width, int height) {
  return Element(chart, width, height, absl::StrCat("<style>", SvgStyle(), "</style>\n"));
}

}  // namespace nsa::client
