// Input values and comparison for the tests of kernels/nn.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace nsa {

// Unit roundoff of fp32: the largest relative error of one operation.
inline constexpr double kUnit = 0x1p-24;

inline std::vector<float> RandomValues(int64_t size, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(size);
  for (float& value : values) value = normal(engine);
  return values;
}

inline std::span<const float> View(const std::vector<float>& values) { return values; }

// Expects |got − want| ≤ bound for every element; a failure names the worst element.
inline void ExpectWithin(std::span<const float> got, std::span<const double> want, double bound,
                         const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  size_t worst = 0;
  double error = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    const double e = std::abs(got[i] - want[i]);
    if (!(e <= error)) error = e, worst = i;
    if (std::isnan(e)) break;  // NaN is the worst; comparisons with it would pick a later element
  }
  EXPECT_LE(error, bound) << what << "[" << worst << "]: " << got[worst] << " vs " << want[worst];
}

// Runs `body` with 1, 2 and 3 threads and expects `result` to have the same bits after each.
template <class Body>
void ExpectSameBitsForAnyThreads(Body body) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::vector<float> one = body();
  for (const int threads : {2, 3}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(one, body()) << threads << " threads";
  }
  omp_set_num_threads(before);
}

}  // namespace nsa
