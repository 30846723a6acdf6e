#include "client/show/draw/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nsa::client {

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
      if (!std::isfinite(y)) continue;
      ++finite;
      // Each summand is small enough that not even the greatest doubles overflow.
      mean += y / finite - mean / finite;
      bucket.least = std::min(bucket.least, y);
      bucket.greatest = std::max(bucket.greatest, y);
    }
    if (finite > 0) bucket.mean = mean;
    buckets.push_back(bucket);
  }
  return buckets;
}

}  // namespace nsa::client
