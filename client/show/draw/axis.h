// The axes of a chart: which numbers it reaches from and to, and where it is labelled. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/show/draw/chart.h"

namespace nsa::client {

struct Axis {
  double least = 0;
  double most = 1;  // above `least`
  double step = 1;  // from one tick to the next
  std::vector<double> ticks;
  Unit unit = Unit::kNumber;
  double above = 0;  // the greatest value when it lies above `most`, else 0
};

// An axis over [least, most] with about `about` (at least 2) ticks at round numbers. Without a
// range (a number that is not finite, least > most) it is [0, 1]; around a single number it is wide
// enough to show it in the middle. Numbers beyond ±1e300 are treated as that.
Axis MakeAxis(double least, double most, int about, Unit unit);

// The axes of a chart. The horizontal one also has the points whose value is not finite. The
// vertical one leaves some room above and below what the curves are, of points that stand for
// several values their means, and ends below the spikes of a chart that may have some.
Axis HorizontalAxis(const Chart& chart, int about);
Axis VerticalAxis(const Chart& chart, int about);

// Where a number lies on the axis: 0 at `least`, 1 at `most`, never outside of that.
double Place(const Axis& axis, double value);

// A single value as such a label, with about four digits: "1.048", "12.35k".
std::string ValueText(double value, Unit unit);
// "training, last 1.048": the name of a curve, `columns` wide at most, and its newest finite value.
std::string LegendText(const Curve& curve, Unit unit, int columns);

// The label of a tick: "0", "0.25", "12k", "512 MiB", "10 min". All ticks of an axis differ.
std::string TickText(const Axis& axis, double value);

}  // namespace nsa::client
