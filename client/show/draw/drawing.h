// The layout of a chart in a picture: title, names of the curves, axes, curves. Pure.
#pragma once

#include "client/show/draw/chart.h"
#include "client/show/draw/surface.h"

namespace nsa::client {

// Draws the chart in this size. At most about 1,000 points of a curve are drawn: the means of
// neighbours, with a band from the least to the greatest of them. A chart without a finite value
// says so.
void DrawChart(const Chart& chart, int width, int height, Surface* surface);

}  // namespace nsa::client
