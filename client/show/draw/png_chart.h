// Charts as PNG: what `nsactl plot -o loss.png` writes. Pure.
#pragma once

#include <string>

#include "client/show/draw/chart.h"

namespace nsa::client {

// The same drawing as SvgFile(), in its light colours, with two points for each pixel so that it
// stays sharp on fine screens. Texts are in ASCII (stroke_font.h).
std::string PngFile(const Chart& chart, int width, int height);

}  // namespace nsa::client
