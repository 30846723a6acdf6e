#include "client/show/draw/png_chart.h"

#include <optional>

#include "client/show/draw/drawing.h"
#include "client/show/draw/palette.h"
#include "client/show/draw/raster.h"
#include "client/show/draw/stroke_font.h"

namespace nsa::client {
namespace {

constexpr int kScale = 2;
constexpr double kFontScale = 1.42;  // pixels for a unit of the font: capitals of 8.5 pixels
constexpr double kTitle = 1.62;
constexpr double kPen = 1.15;
constexpr double kBoldPen = 1.75;
constexpr double kFullStop = 1.4;  // pens
constexpr double kCurve = 1.7;
constexpr double kThinCurve = 1.1;
constexpr double kThinShare = 0.7;
constexpr double kBandShare = 0.22;

class PngSurface final : public Surface {
 public:
  void Begin(int width, int height, const std::string& title, const std::string& note) override {
    raster_.emplace(width, height, kScale);
    raster_->FillAll(kLight.back);
    const double end = Write({16, 24}, title, kTitle, kBoldPen, kLight.ink);
    Write({end + 10, 24}, note, kFontScale, kPen, kLight.soft);
  }

  void Text(Point at, Align align, const std::string& text) override {
    const double width = StrokesOf(text).width * kFontScale;
    if (align == Align::kMiddle) at.x -= width / 2;
    if (align == Align::kEnd) at.x -= width;
    Write(at, text, kFontScale, kPen, kLight.soft);
  }

  void Line(Point from, Point to, Rule rule, int colour) override {
    if (rule == Rule::kKey) {
      raster_->Stroke({from, to}, 2.5, kLight.curves[colour % kColours]);
      return;
    }
    // In the middle of a point, so that it stays thin.
    raster_->Stroke({{from.x + 0.25, from.y + 0.25}, {to.x + 0.25, to.y + 0.25}}, 1,
                    rule == Rule::kGrid ? kLight.grid : kLight.soft);
  }

  void Dot(Point at, double radius, int colour) override {
    raster_->Stroke({at}, 2 * radius, kLight.curves[colour % kColours]);
  }

  void Path(const std::vector<Point>& points, bool thin, int colour) override {
    raster_->Stroke(points, thin ? kThinCurve : kCurve, kLight.curves[colour % kColours],
                    thin ? kThinShare : 1);
  }

  void Band(const std::vector<Point>& upper, const std::vector<Point>& lower, int colour) override {
    raster_->Fill(upper, lower, kLight.curves[colour % kColours], kBandShare);
  }

  std::string Png() const { return raster_->Png(); }

 private:
  // Returns where the text ends.
  double Write(Point at, const std::string& text, double size, double pen, const char* colour) {
    const StrokeText drawn = StrokesOf(text);
    for (std::vector<Point> stroke : drawn.strokes) {
      for (Point& point : stroke) point = {at.x + size * point.x, at.y + size * point.y};
      raster_->Stroke(stroke, stroke.size() == 1 ? kFullStop * pen : pen, colour);
    }
    return at.x + size * drawn.width;
  }

  std::optional<Raster> raster_;
};

}  // namespace

std::string PngFile(const Chart& chart, int width, int height) {
  PngSurface surface;
  DrawChart(chart, width, height, &surface);
  return surface.Png();
}

}  // namespace nsa::client
