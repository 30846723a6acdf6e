#include "kernels/nn/activation.h"

#include <cstring>

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

TEST(Activation, SiluEqualsTheFormulaAndItsDerivative) {
  std::vector<float> x = RandomValues(1003, 1, 4.0f), y(x.size()), dx(x.size());
  x[0] = -100.0f, x[1] = 100.0f, x[2] = 0.0f;
  const std::vector<float> dy = RandomValues(1003, 2);
  ASSERT_TRUE(Activate({}, {.x = View(x), .y = std::span<float>(y)}).ok());
  ASSERT_TRUE(
      ActivateBackward({}, {.dy = View(dy), .x = View(x), .dx = std::span<float>(dx)}).ok());
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

// Both sides of every value are the same two or three roundings. ±0 and the smallest numbers are
// among the values, and the derivative is that of central differences.
TEST(Activation, Relu2EqualsTheFormulaAndItsDerivative) {
  constexpr Activation kKind = Activation::kRelu2;
  std::vector<float> x = RandomValues(1003, 1, 4.0f), y(x.size()), dx(x.size());
  x[0] = -100.0f, x[1] = 100.0f, x[2] = 0.0f, x[3] = -0.0f, x[4] = -1e-30f, x[5] = 1e-30f;
  const std::vector<float> dy = RandomValues(1003, 2);
  ASSERT_TRUE(Activate({}, {.x = View(x), .y = std::span<float>(y), .kind = kKind}).ok());
  ASSERT_TRUE(ActivateBackward(
                  {}, {.dy = View(dy), .x = View(x), .dx = std::span<float>(dx), .kind = kKind})
                  .ok());
  const auto relu2 = [](double at) { return at > 0 ? at * at : 0.0; };
  std::vector<double> want_y(x.size()), want_dx(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    constexpr double kStep = 1e-6;
    want_y[i] = relu2(x[i]);
    want_dx[i] = dy[i] * (relu2(x[i] + kStep) - relu2(x[i] - kStep)) / (2 * kStep);
  }
  ExpectWithin(y, want_y, 100 * 100 * kUnit, "y");
  // A difference of numbers up to 1e4, each accurate to 2^-53, divided by 2e-6.
  ExpectWithin(dx, want_dx, 1e-6 + 2 * 2 * 100 * kUnit, "dx");
}

TEST(Activation, KeepsNaN) {
  for (const Activation kind : {Activation::kSilu, Activation::kRelu2}) {
    const std::vector<float> x = {NAN, 1.0f}, dy = {1.0f, NAN};
    std::vector<float> y(2), dx(2);
    ASSERT_TRUE(Activate({}, {.x = View(x), .y = std::span<float>(y), .kind = kind}).ok());
    ASSERT_TRUE(ActivateBackward(
                    {}, {.dy = View(dy), .x = View(x), .dx = std::span<float>(dx), .kind = kind})
                    .ok());
    EXPECT_TRUE(std::isnan(y[0]) && std::isfinite(y[1]));
    EXPECT_TRUE(std::isnan(dx[0]) && std::isnan(dx[1]));
  }
}

TEST(Activation, WorksInPlace) {
  for (const Activation kind : {Activation::kSilu, Activation::kRelu2}) {
    const std::vector<float> x = RandomValues(77, 3);
    std::vector<float> apart(77), in_place = x;
    ASSERT_TRUE(Activate({}, {.x = View(x), .y = std::span<float>(apart), .kind = kind}).ok());
    ASSERT_TRUE(
        Activate({}, {.x = View(in_place), .y = std::span<float>(in_place), .kind = kind}).ok());
    EXPECT_EQ(apart, in_place);
  }
}

// The backward pass of a model takes the place of the input with the output.
TEST(Activation, BackwardComputesTheOutputAgain) {
  for (const Activation kind : {Activation::kSilu, Activation::kRelu2}) {
    std::vector<float> x = RandomValues(77, 3), y(77), again(77), dx(77), dx_in_place(77);
    x[0] = NAN, x[1] = 0.0f, x[2] = -0.0f, x[3] = -90.0f, x[4] = 90.0f;
    const std::vector<float> dy = RandomValues(77, 4);
    ASSERT_TRUE(Activate({}, {.x = View(x), .y = std::span<float>(y), .kind = kind}).ok());
    ActivateBackwardArgs args = {
        .dy = View(dy), .x = View(x), .dx = std::span<float>(dx), .kind = kind};
    args.y = std::span<float>(again);
    ASSERT_TRUE(ActivateBackward({}, args).ok());
    args.dx = std::span<float>(dx_in_place);
    args.y = std::span<float>(x);
    ASSERT_TRUE(ActivateBackward({}, args).ok());
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same(again, y));
    EXPECT_TRUE(same(x, y));
    EXPECT_TRUE(same(dx_in_place, dx));
    args.y = std::span<float>(again).first(76);
    EXPECT_EQ(ActivateBackward({}, args).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace nsa
