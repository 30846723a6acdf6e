// A picture of points: lines, dots and areas with smooth edges, and the file that holds it. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/show/draw/surface.h"

namespace nsa::client {

class Raster {
 public:
  // All white. Places and widths below are in units of `scale` (at least 1) points each.
  Raster(int width, int height, int scale);

  // A line of a round pen, or a dot of its width if there is one point. `colour` is "#rrggbb",
  // `share` how much of it covers what is below, 0 to 1. Where a line crosses itself it does not
  // become darker. What lies outside of the picture is left out.
  void Stroke(const std::vector<Point>& points, double width, std::string_view colour,
              double share = 1);
  // The area between two lines with the same x, which does not decrease.
  void Fill(const std::vector<Point>& upper, const std::vector<Point>& lower,
            std::string_view colour, double share);
  void FillAll(std::string_view colour);

  int columns() const { return columns_; }
  int rows() const { return rows_; }
  // Red, green and blue of a point.
  std::array<uint8_t, 3> At(int column, int row) const;

  // A PNG file of this picture (ISO/IEC 15948): 8 bits a colour, without transparency.
  std::string Png() const;

 private:
  void Segment(Point from, Point to, double radius);
  void Column(int column, double top, double bottom);
  void Cover(int column, int row, double share);
  void Ink(std::string_view colour, double share);

  const int columns_, rows_, scale_;
  std::vector<uint8_t> pixels_;  // rows of columns of red, green, blue
  // What is being drawn: how much of each point it covers, and where that is not 0.
  std::vector<float> cover_;
  int left_, right_, top_, bottom_;
};

}  // namespace nsa::client
