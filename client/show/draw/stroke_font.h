// Letters as lines of a pen, for pictures of points: nothing has to be installed to draw a text.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "client/show/draw/surface.h"

namespace nsa::client {

// A text on its baseline, from x = 0 to the right and with y downwards. Small letters are 4 high,
// capitals 6, letters that reach below the line 2 below. A stroke of one point is a dot.
struct StrokeText {
  std::vector<std::vector<Point>> strokes;
  double width = 0;
};

// ASCII is drawn; of other characters those that the charts use are spelled in ASCII ("µ" is "u"),
// and the rest are "?".
StrokeText StrokesOf(const std::string& text);

}  // namespace nsa::client
