// What a chart is drawn on, in pixels from the top left corner. svg_chart.cc and png_chart.cc have
// one each; drawing.h draws the same chart on both.
#pragma once

#include <string>
#include <vector>

namespace nsa::client {

struct Point {
  double x = 0;
  double y = 0;
};

enum class Rule { kGrid, kAxis, kKey };  // kKey: a curve's line in the legend
enum class Align { kStart, kMiddle, kEnd };

class Surface {
 public:
  virtual ~Surface() = default;
  // The whole area, the title, and softly beside it what the values are.
  virtual void Begin(int width, int height, const std::string& title, const std::string& note) = 0;
  // `y` is that of the baseline.
  virtual void Text(Point at, Align align, const std::string& text) = 0;
  // `colour` counts only for kKey.
  virtual void Line(Point from, Point to, Rule rule, int colour) = 0;
  virtual void Dot(Point at, double radius, int colour) = 0;
  // At least two points, from left to right.
  virtual void Path(const std::vector<Point>& points, bool thin, int colour) = 0;
  // The area between two lines with the same x.
  virtual void Band(const std::vector<Point>& upper, const std::vector<Point>& lower,
                    int colour) = 0;
};

}  // namespace nsa::client
