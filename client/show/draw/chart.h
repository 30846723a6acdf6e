// Curves that are to be drawn, as values. svg_chart.h draws them for a file, text_chart.h for a
// terminal; both draw the same axes and the same points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nsa::client {

// How the numbers of an axis are written.
enum class Unit {
  kNumber,   // 0.25, 12k, 3M
  kCount,    // the same, whole numbers only
  kBytes,    // 512 MiB
  kSeconds,  // 20 ms, 5 s, 10 min, 2 h
};

// There are this many colours; a curve's colour counts from 0, and the ninth is the first again.
inline constexpr int kColours = 8;

struct Curve {
  std::string name;
  std::vector<double> x;  // finite, does not decrease
  std::vector<double> y;  // as many; a value that is not finite leaves a gap
  // What each y is the mean of: the least and the greatest value, and how many others were NaN or
  // infinite. Each as many as y, or empty: then y is one value.
  std::vector<double> least;
  std::vector<double> greatest;
  std::vector<int64_t> nonfinite;
  bool dots = false;  // few measurements: each is also drawn as a point
  int colour = 0;
};

struct Chart {
  std::string title;
  std::string note;    // what the values are, e.g. "nats a token"; may be empty
  std::string x_name;  // e.g. "step"
  Unit x_unit = Unit::kCount;
  Unit y_unit = Unit::kNumber;
  bool from_zero = false;  // the vertical axis begins at 0
  // Single values may be far above the others: the vertical axis shows the usual range, and the
  // drawing says what lies above it.
  bool spikes = false;
  std::vector<Curve> curves;
};

// Some neighbouring points of a curve as one.
struct Bucket {
  double x = 0;     // of the middle one
  double mean = 0;  // NaN when no value is finite
  double least = 0;
  double greatest = 0;
  int64_t nonfinite = 0;  // values that are NaN or infinite
};

// The running mean of the buckets, each over as many on both sides. Empty for a curve that has too
// few points, or is too smooth, to separate from noise.
std::vector<Bucket> RunningMean(const std::vector<Bucket>& buckets);

// True when any value of a curve is finite.
bool HasFinite(const Chart& chart);

// "3 values are NaN or infinite (SIGN)"; empty when none is. Drawings say it beside the title and
// put the sign below the points that have such values.
std::string NonfiniteNote(const Chart& chart, const std::string& sign);

// The curve in at most `most` (at least 1) buckets with as many points each, in order. Every point
// is in one of them, so the greatest value of the curve is the greatest of a bucket.
std::vector<Bucket> Thin(const Curve& curve, size_t most);

}  // namespace nsa::client
