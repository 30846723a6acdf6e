#include "client/show/draw/svg_chart.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/show/draw/drawing.h"
#include "client/show/draw/markup.h"
#include "client/show/draw/palette.h"

namespace nsa::client {
namespace {

// Collects the elements of the picture.
class SvgSurface final : public Surface {
 public:
  // `style` stands before the elements.
  explicit SvgSurface(std::string style) : style_(std::move(style)) {}

  void Begin(int width, int height, const std::string& title, const std::string& note) override {
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

  void Text(Point at, Align align, const std::string& text) override {
    const char* const style = align == Align::kStart    ? "soft"
                              : align == Align::kMiddle ? "soft middle"
                                                        : "soft end";
    absl::StrAppendFormat(&svg_, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", at.x, at.y,
                          style, Markup(text));
  }

  void Line(Point from, Point to, Rule rule, int colour) override {
    const std::string style = rule == Rule::kGrid   ? "grid"
                              : rule == Rule::kAxis ? "axis"
                                                    : absl::StrCat("l", colour % kColours);
    absl::StrAppendFormat(&svg_,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                          from.x, from.y, to.x, to.y, style);
  }

  void Dot(Point at, double radius, int colour) override {
    absl::StrAppendFormat(&svg_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" class=\"f%d\"/>\n",
                          at.x, at.y, radius, colour % kColours);
  }

  void Path(const std::vector<Point>& points, bool thin, int colour) override {
    absl::StrAppend(&svg_, "<polyline points=\"", Places(points), "\" class=\"l", colour % kColours,
                    thin ? " thin" : "", "\"/>\n");
  }

  void Band(const std::vector<Point>& upper, const std::vector<Point>& lower, int colour) override {
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

std::string Element(const Chart& chart, int width, int height, std::string style) {
  SvgSurface surface(std::move(style));
  DrawChart(chart, width, height, &surface);
  return surface.Take();
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
      ".chart polyline.thin{stroke-width:1;opacity:.7}",
      colours(kLight), "@media (prefers-color-scheme:dark){", colours(kDark), "}");
}

std::string SvgChart(const Chart& chart, int width, int height) {
  return Element(chart, width, height, "");
}

std::string SvgFile(const Chart& chart, int width, int height) {
  return Element(chart, width, height, absl::StrCat("<style>", SvgStyle(), "</style>\n"));
}

}  // namespace nsa::client
