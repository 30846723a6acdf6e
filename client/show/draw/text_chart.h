// Charts in a terminal: lines of text. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/show/draw/chart.h"

namespace nsa::client {

struct TextSize {
  int columns = 80;  // of the whole chart; at least 30 are used
  int rows = 15;     // of the area with the curves; at least 4 are used
  bool unicode = true;
  bool colours = true;
};

// A chart as lines of text, none wider than `size.columns`: title, names of the curves, the curves
// between their axes. With unicode a curve is a line of braille dots, two by four in a character,
// and measurements are a dot each; without, curves are drawn with a letter each. Where several
// lines could not be told apart because there are no colours, each has its letter at some points,
// and so have several kinds of measurements. A chart without a finite value says so.
std::vector<std::string> TextChart(const Chart& chart, const TextSize& size);

}  // namespace nsa::client
