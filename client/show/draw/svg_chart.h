// Charts as SVG: the drawing of `nsactl plot -o` and of `nsactl report`. Pure.
#pragma once

#include <string>

#include "client/show/draw/chart.h"

namespace nsa::client {

// The style of all charts, with colours for light and dark readers. A page with several charts has
// it once, in its <style>.
std::string SvgStyle();

// A chart as an <svg> element of this size (DrawChart()), which brings no style. Every text is
// escaped.
std::string SvgChart(const Chart& chart, int width, int height);

// The same as a file, with its style.
std::string SvgFile(const Chart& chart, int width, int height);

}  // namespace nsa::client
