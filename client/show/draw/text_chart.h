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
// between their axes. With unicode a curve is a line of braille dots, two by four in a character.
// Where curves could not be told apart by colour each has a letter, as they all have without
// unicode. Measurements are a dot each. A chart without a finite value says so.
std::vector<std::string> TextChart(const Chart& chart, const TextSize& size);

}  // namespace nsa::client
