#include "kernels/nn/silu.h"

#include "kernels/vector_exp.h"
#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

TEST(VectorExp, IsWithinTwoUnitsInTheLastPlace) {
  for (double x = -87.0; x < 88.0; x += 0.00731) {
    const float at = static_cast<float>(x);
    const double want = std::exp(double{at});
    ASSERT_NEAR(VectorExp(at), want, 2 * 2 * kUnit * want) << at;
  }
  EXPECT_EQ(VectorExp(0.0f), 1.0f);
}

TEST(VectorExp, IsTinyBelowItsRangeLargeAboveAndNaNForNaN) {
  EXPECT_LT(VectorExp(-1e30f), 2e-38f);
  EXPECT_LT(VectorExp(-INFINITY), 2e-38f);
  EXPECT_GT(VectorExp(1e30f), 1e38f);
  EXPECT_TRUE(std::isnan(VectorExp(NAN)));
}

TEST(Silu, EqualsTheFormulaAndItsDerivative) {
  std::vector<float> x = RandomValues(1003, 1, 4.0f), y(x.size()), dx(x.size());
  x[0] = -100.0f, x[1] = 100.0f, x[2] = 0.0f;
  const std::vector<float> dy = RandomValues(1003, 2);
  ASSERT_TRUE(Silu({}, {.x = View(x), .y = std::span<float>(y)}).ok());
  ASSERT_TRUE(SiluBackward({}, {.dy = View(dy), .x = View(x), .dx = std::span<float>(dx)}).ok());
  std::vector<double> want_y(x.size()), want_dx(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double s = Sigmoid(x[i]);
    want_y[i] = x[i] * s;
    want_dx[i] = dy[i] * s * (1 + x[i] * (1 - s));
  }
  // The error of σ is 4 units from the exponential and three roundings; |x| ≤ 100, and despite the
  // cancellation in 1 − s, |x|·(1 − s) ≤ 0.3 + |x|·unit.
  ExpectWithin(y, want_y, 100 * 8 * kUnit, "y");
  ExpectWithin(dx, want_dx, 4 * 100 * 8 * kUnit, "dx");
}

TEST(Silu, WorksInPlace) {
  const std::vector<float> x = RandomValues(77, 3);
  std::vector<float> apart(77), in_place = x;
  ASSERT_TRUE(Silu({}, {.x = View(x), .y = std::span<float>(apart)}).ok());
  ASSERT_TRUE(Silu({}, {.x = View(in_place), .y = std::span<float>(in_place)}).ok());
  EXPECT_EQ(apart, in_place);
}

}  // namespace
}  // namespace nsa
