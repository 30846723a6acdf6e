#include "kernels/cpu_tile.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cases.h"

namespace nsa::cpu {
namespace {

using testing::kUnit;

float ExpOf(float x) { return Exp(Splat(x))[3]; }

TEST(Exp, IsWithinTwoUnitsInTheLastPlace) {
  for (double x = -87.2; x < 88.7; x += 0.000931) {
    const float argument = static_cast<float>(x);
    const double want = std::exp(static_cast<double>(argument));
    ASSERT_NEAR(ExpOf(argument), want, 2 * 2 * kUnit * want) << argument;
  }
}

TEST(Exp, IsExactAtZeroAndKeepsTheEnds) {
  EXPECT_EQ(ExpOf(0), 1);
  EXPECT_EQ(ExpOf(-87.4f), 0);
  EXPECT_EQ(ExpOf(-1e30f), 0);
  EXPECT_EQ(ExpOf(-std::numeric_limits<float>::infinity()), 0);
  EXPECT_EQ(ExpOf(100), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(ExpOf(std::numeric_limits<float>::quiet_NaN())));
}

// Covers every row remainder of the register tiles, column counts that are not whole panels, a
// transposed operand, and adding to the result.
TEST(MatMul, EqualsTheTripleLoop) {
  for (int64_t m = 1; m <= 13; ++m) {
    for (const int64_t n : {1, 15, 16, 17, 40}) {
      for (const int64_t k : {0, 1, 7, 32}) {
        const int64_t step = RoundUp(n, kPanel);
        const std::vector<float> a = testing::Random(m * k, 1), b = testing::Random(k * step, 2);
        const std::vector<float> c = testing::Random(m * step, 3);
        std::vector<float> plain = c, added = c, transposed = c, turned(m * k);
        Transpose(m, k, a.data(), k, turned.data(), m);
        MatMul<false>(m, n, k, {a.data(), k, 1}, b.data(), step, plain.data(), step);
        MatMul<true>(m, n, k, {a.data(), k, 1}, b.data(), step, added.data(), step);
        MatMul<false>(m, n, k, {turned.data(), 1, m}, b.data(), step, transposed.data(), step);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double want = 0;
            for (int64_t x = 0; x < k; ++x) {
              want += static_cast<double>(a[i * k + x]) * b[x * step + j];
            }
            // At most 32 partial sums of size ≤ 6, each rounded once.
            const double bound = 32 * 6 * kUnit;
            ASSERT_NEAR(plain[i * step + j], want, bound) << m << " " << n << " " << k;
            ASSERT_NEAR(added[i * step + j], want + c[i * step + j], bound);
            ASSERT_EQ(transposed[i * step + j], plain[i * step + j]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace nsa::cpu
