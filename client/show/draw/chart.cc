#include "client/show/draw/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"

namespace nsa::client {
namespace {

// A running mean is of curves with so many points, and reaches over this share of them on each
// side.
constexpr size_t kLeastNoisy = 100;
constexpr size_t kReaches = 60;

int64_t NonfiniteAt(const Curve& curve, size_t point) {
  if (point < curve.nonfinite.size()) return curve.nonfinite[point];
  return std::isfinite(curve.y[point]) ? 0 : 1;
}

}  // namespace

std::vector<Bucket> RunningMean(const std::vector<Bucket>& buckets) {
  size_t turns = 0;
  for (size_t i = 2; i < buckets.size(); ++i) {
    const double before = buckets[i - 1].mean - buckets[i - 2].mean;
    const double after = buckets[i].mean - buckets[i - 1].mean;
    if ((before < 0 && after > 0) || (before > 0 && after < 0)) ++turns;
  }
  if (buckets.size() < kLeastNoisy || turns < buckets.size() / 4) return {};
  const size_t reach = buckets.size() / kReaches;
  std::vector<Bucket> means = buckets;
  for (size_t i = 0; i < buckets.size(); ++i) {
    // Fewer near the ends, so that the line neither lags nor flattens there.
    const size_t around = std::min({reach, i, buckets.size() - 1 - i});
    double mean = 0;
    int count = 0;
    for (size_t k = i - around; k <= i + around; ++k) {
      if (!std::isfinite(buckets[k].mean)) continue;
      ++count;
      mean += buckets[k].mean / count - mean / count;
    }
    if (std::isfinite(buckets[i].mean)) means[i].mean = mean;
  }
  return means;
}

bool HasFinite(const Chart& chart) {
  return std::ranges::any_of(chart.curves, [](const Curve& curve) {
    return std::ranges::any_of(curve.y, [](double y) { return std::isfinite(y); });
  });
}

std::string NonfiniteNote(const Chart& chart, const std::string& sign) {
  int64_t count = 0;
  for (const Curve& curve : chart.curves) {
    for (size_t i = 0; i < curve.y.size(); ++i) count += NonfiniteAt(curve, i);
  }
  if (count == 0) return "";
  return absl::StrCat(Count(count, "value"), count == 1 ? " is" : " are", " NaN or infinite (",
                      sign, ")");
}

std::vector<Bucket> Thin(const Curve& curve, size_t most) {
  const size_t count = std::min(curve.x.size(), curve.y.size());
  const size_t wide = std::max<size_t>(1, (count + most - 1) / std::max<size_t>(most, 1));
  std::vector<Bucket> buckets;
  for (size_t from = 0; from < count; from += wide) {
    const size_t to = std::min(from + wide, count);
    Bucket bucket{.x = curve.x[from + (to - from) / 2],
                  .mean = std::numeric_limits<double>::quiet_NaN(),
                  .least = std::numeric_limits<double>::infinity(),
                  .greatest = -std::numeric_limits<double>::infinity()};
    double mean = 0;
    int finite = 0;
    for (size_t i = from; i < to; ++i) {
      const double y = curve.y[i];
      bucket.nonfinite += NonfiniteAt(curve, i);
      if (!std::isfinite(y)) continue;
      ++finite;
      // Each summand is small enough that not even the greatest doubles overflow.
      mean += y / finite - mean / finite;
      bucket.least = std::min(bucket.least, curve.least.empty() ? y : curve.least[i]);
      bucket.greatest = std::max(bucket.greatest, curve.greatest.empty() ? y : curve.greatest[i]);
    }
    if (finite > 0) bucket.mean = mean;
    buckets.push_back(bucket);
  }
  return buckets;
}

}  // namespace nsa::client
