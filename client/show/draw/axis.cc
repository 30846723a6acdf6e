#include "client/show/draw/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/show/human.h"
#include "common/base/clean_text.h"

namespace nsa::client {
namespace {

constexpr double kGreatest = 1e300;
// Ranges that are smaller than this in proportion to their numbers are drawn as one number.
constexpr double kSmallestShare = 1e-9;
constexpr double kSmallest = 1e-290;
// Numbers from here on are written with an exponent, in every unit.
constexpr double kMostWritten = 1e15;
constexpr double kRoom = 0.05;
constexpr double kHourSeconds = 3600;
constexpr double kDaySeconds = 24 * kHourSeconds;

// The smallest of 1, 2, 5, 10 times a power of ten that is at least `raw`.
double RoundUp(double raw) {
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power * (1 + 1e-9)) return factor * power;
  }
  return 10 * power;
}

double StepOf(double raw, Unit unit) {
  static constexpr std::array<double, 17> kTimes = {1,
                                                    2,
                                                    5,
                                                    10,
                                                    15,
                                                    30,
                                                    60,
                                                    120,
                                                    300,
                                                    600,
                                                    900,
                                                    1800,
                                                    kHourSeconds,
                                                    2 * kHourSeconds,
                                                    6 * kHourSeconds,
                                                    12 * kHourSeconds,
                                                    kDaySeconds};
  if (unit == Unit::kBytes) return std::max(1.0, std::exp2(std::ceil(std::log2(raw) - 1e-9)));
  if (unit == Unit::kCount) return std::max(1.0, RoundUp(raw));
  if (unit == Unit::kSeconds && raw > 0.5) {
    const auto* found = std::lower_bound(kTimes.begin(), kTimes.end(), raw * (1 - 1e-9));
    return found != kTimes.end() ? *found : RoundUp(raw / kDaySeconds) * kDaySeconds;
  }
  return RoundUp(raw);
}

// As many decimals as the step has, so that ticks are what they say: 0.125 has three.
std::string Decimal(double value, double step) {
  if (value == 0) return "0";
  int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 9);
  const auto rounded = [&] {
    const double power = std::pow(10, decimals);
    return std::round(step * power) / power;
  };
  while (decimals < 9 && std::fabs(rounded() - step) > 1e-6 * step) ++decimals;
  return absl::StrFormat("%.*f", decimals, value);
}

struct Scale {
  double factor;
  const char* name;
};

std::string Scaled(const Axis& axis, double value, const Scale& scale) {
  return absl::StrCat(Decimal(value / scale.factor, axis.step / scale.factor),
                      value == 0 ? "" : scale.name);
}

// With an exponent: as many digits as distinguish the value from its neighbours.
std::string ExponentText(const Axis& axis, double value) {
  if (value == 0) return "0";
  const auto power = [](double number) { return std::floor(std::log10(number) + 1e-9); };
  const int digits = static_cast<int>(power(std::fabs(value)) - power(axis.step));
  return absl::StrFormat("%.*e", std::clamp(digits, 0, 9), value);
}

std::string NumberText(const Axis& axis, double value, double size) {
  if (size < 1e-3) return ExponentText(axis, value);
  if (size >= 1e12) return Scaled(axis, value, {1e12, "T"});
  if (size >= 1e9) return Scaled(axis, value, {1e9, "G"});
  if (size >= 1e6) return Scaled(axis, value, {1e6, "M"});
  return Scaled(axis, value, size >= 1e4 ? Scale{1e3, "k"} : Scale{1, ""});
}

std::string BytesText(const Axis& axis, double value, double size) {
  static constexpr std::array<const char*, 5> kNames = {" B", " KiB", " MiB", " GiB", " TiB"};
  size_t power = 0;
  double factor = 1;
  while (power + 1 < kNames.size() && size >= 1024 * factor) {
    ++power;
    factor *= 1024;
  }
  return Scaled(axis, value, {factor, kNames[power]});
}

// In the largest unit that divides the step; below a second, as a fraction.
std::string SecondsText(const Axis& axis, double value, double size) {
  for (const Scale& scale :
       {Scale{kDaySeconds, " d"}, Scale{kHourSeconds, " h"}, Scale{60, " min"}}) {
    if (size >= scale.factor && std::fmod(axis.step, scale.factor) == 0) {
      return Scaled(axis, value, scale);
    }
  }
  if (size >= 1) return Scaled(axis, value, {1, " s"});
  return size >= 1e-3 ? Scaled(axis, value, {1e-3, " ms"}) : Scaled(axis, value, {1e-6, " µs"});
}

// Values above this many times the usual greatest one are spikes; usual are all but a fiftieth.
constexpr double kSpike = 3;
constexpr size_t kSpikes = 50;

// Where the axis of a chart ends that may have spikes: below them, if there are any.
double UsualMost(std::vector<double> values) {
  const auto usual = values.end() - 1 - std::ssize(values) / static_cast<std::ptrdiff_t>(kSpikes);
  std::ranges::nth_element(values, usual);
  const double most = *usual;
  const double greatest = *std::ranges::max_element(values);
  return most > 0 && greatest > kSpike * most ? most * (kSpike / 2) : greatest;
}

Axis AxisOf(const Chart& chart, bool vertical, int about) {
  std::vector<double> values;
  for (const Curve& curve : chart.curves) {
    for (size_t i = 0; i < std::min(curve.x.size(), curve.y.size()); ++i) {
      const double value = vertical ? curve.y[i] : curve.x[i];
      if (std::isfinite(value)) values.push_back(value);
    }
  }
  const Unit unit = vertical ? chart.y_unit : chart.x_unit;
  if (values.empty()) return MakeAxis(1, 0, about, unit);
  double least = *std::ranges::min_element(values);
  const double greatest = *std::ranges::max_element(values);
  double most = vertical && chart.spikes ? UsualMost(std::move(values)) : greatest;
  // Of an amount of memory it is the size that counts, not how little it changes.
  const bool from_zero = chart.from_zero || chart.y_unit == Unit::kBytes;
  if (vertical && from_zero) least = std::min(least, 0.0);
  if (vertical) {
    const double room = most * kRoom - least * kRoom;
    const bool positive = least >= 0;
    least = positive ? std::max(0.0, least - room) : least - room;
    most += room;
  }
  Axis axis = MakeAxis(least, most, about, unit);
  if (vertical && chart.spikes && greatest > axis.most) axis.above = greatest;
  return axis;
}

}  // namespace

Axis MakeAxis(double least, double most, int about, Unit unit) {
  Axis axis{.unit = unit};
  // NaN fails this too.
  if (least <= most) {
    axis.least = std::clamp(least, -kGreatest, kGreatest);
    axis.most = std::clamp(most, -kGreatest, kGreatest);
  }
  const double size = std::max(std::fabs(axis.least), std::fabs(axis.most));
  if (axis.most - axis.least <= std::max(kSmallest, kSmallestShare * size)) {
    const double around = size <= kSmallest ? 1 : 0.1 * size;
    axis.least -= around;
    axis.most += around;
    if (unit != Unit::kNumber && least >= 0) axis.least = std::max(0.0, axis.least);
  }
  axis.step = StepOf((axis.most - axis.least) / std::max(2, about), unit);
  const double first = std::ceil(axis.least / axis.step - 1e-9);
  const double last = std::floor(axis.most / axis.step + 1e-9);
  for (double i = first; i <= last && axis.ticks.size() < 100; ++i) {
    axis.ticks.push_back(i == 0 ? 0 : i * axis.step);  // never -0
  }
  return axis;
}

Axis HorizontalAxis(const Chart& chart, int about) { return AxisOf(chart, false, about); }

Axis VerticalAxis(const Chart& chart, int about) { return AxisOf(chart, true, about); }

double Place(const Axis& axis, double value) {
  // Halves, because the difference of the ends may overflow.
  const double place = (value / 2 - axis.least / 2) / (axis.most / 2 - axis.least / 2);
  return std::clamp(place, 0.0, 1.0);
}

std::string ValueText(double value, Unit unit) {
  return TickText(MakeAxis(0, std::fabs(value), 1000, unit), value);
}

std::string LegendText(const Curve& curve, Unit unit, int columns) {
  const std::string name = ClipMiddle(CleanLine(curve.name), columns);
  for (auto y = curve.y.rbegin(); y != curve.y.rend(); ++y) {
    if (std::isfinite(*y)) return absl::StrCat(name, ", last ", ValueText(*y, unit));
  }
  return name;
}

std::string TickText(const Axis& axis, double value) {
  const double size = std::max(std::fabs(axis.least), std::fabs(axis.most));
  if (size >= kMostWritten) return ExponentText(axis, value);
  if (axis.unit == Unit::kBytes) return BytesText(axis, value, size);
  if (axis.unit == Unit::kSeconds) return SecondsText(axis, value, size);
  return NumberText(axis, value, size);
}

}  // namespace nsa::client
