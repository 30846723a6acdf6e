// Charts as SVG: the drawing of `nsactl plot -o` and of `nsactl report`. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/show/draw/chart.h"

namespace nsa::client {

// The style of all charts, with colours for light and dark readers. A page with several charts has
// it once, in its <style>.
std::string SvgStyle();

// A chart as an <svg> element of this size, which brings no style: title, names of the curves,
// axes, curves. Every text is escaped. At most about 1,000 points of a curve are drawn: the means
// of neighbours, with a band from the least to the greatest of them; a noisy curve is pale below
// its running mean. A chart without a finite value says so.
std::string SvgChart(const Chart& chart, int width, int height);

// One or more of them, each of this size and below the one before, as a file with their style.
std::string SvgFile(const std::vector<Chart>& charts, int width, int height);

}  // namespace nsa::client
