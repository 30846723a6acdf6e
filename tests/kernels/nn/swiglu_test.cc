#include "kernels/nn/swiglu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

constexpr int64_t kRows = 5, kWidth = 37;

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

// silu(gate) · up of column i of a row x.
double ValueAt(const double* x, int64_t i) { return Silu(x[i]) * x[kWidth + i]; }

TEST(Swiglu, EqualsTheFormula) {
  const std::vector<float> x = RandomValues(2 * kRows * kWidth, 1, 4.0f);
  std::vector<float> y(kRows * kWidth);
  ASSERT_TRUE(
      Swiglu({}, {.rows = kRows, .width = kWidth, .x = View(x), .y = std::span<float>(y)}).ok());
  std::vector<double> want(y.size());
  const std::vector<double> exact(x.begin(), x.end());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kWidth; ++i) {
      want[row * kWidth + i] = ValueAt(exact.data() + 2 * row * kWidth, i);
    }
  }
  // σ has an error of 4 units from the exponential and three roundings; |gate · up| ≤ 16.
  ExpectWithin(y, want, 16 * 10 * kUnit, "y");
}

TEST(Swiglu, GradientsEqualCentralDifferences) {
  const std::vector<float> x = RandomValues(2 * kRows * kWidth, 2, 4.0f),
                           dy = RandomValues(kRows * kWidth, 3);
  std::vector<float> dx(x.size());
  ASSERT_TRUE(SwigluBackward({}, {.rows = kRows,
                                  .width = kWidth,
                                  .dy = View(dy),
                                  .x = View(x),
                                  .dx = std::span<float>(dx)})
                  .ok());
  std::vector<double> want(x.size()), at(x.begin(), x.end());
  for (size_t i = 0; i < at.size(); ++i) {
    constexpr double kStep = 1e-6;
    const int64_t row = static_cast<int64_t>(i) / (2 * kWidth);
    const int64_t column = static_cast<int64_t>(i) % kWidth;
    const double* const from = at.data() + 2 * row * kWidth;
    const double value = at[i];
    at[i] = value + kStep;
    const double above = ValueAt(from, column);
    at[i] = value - kStep;
    const double below = ValueAt(from, column);
    at[i] = value;
    want[i] = dy[row * kWidth + column] * (above - below) / (2 * kStep);
  }
  // A difference of numbers up to 16, each accurate to 2^-53, divided by 2e-6; then the roundings.
  ExpectWithin(dx, want, 1e-8 + 16 * 12 * kUnit, "dx");
}

// The backward pass of a model puts gradients and outputs where their inputs were.
TEST(Swiglu, BackwardWorksInPlaceAndComputesTheOutputAgain) {
  std::vector<float> x = RandomValues(2 * kRows * kWidth, 4, 4.0f);
  x[0] = NAN, x[1] = -90.0f, x[2] = 90.0f;
  std::vector<float> d = RandomValues(kRows * kWidth, 5), y(d.size()), dx(x.size());
  ASSERT_TRUE(
      Swiglu({}, {.rows = kRows, .width = kWidth, .x = View(x), .y = std::span<float>(y)}).ok());
  SwigluBackwardArgs args = {
      .rows = kRows, .width = kWidth, .dy = View(d), .x = View(x), .dx = std::span<float>(dx)};
  ASSERT_TRUE(SwigluBackward({}, args).ok());
  args.dx = std::span<float>(x);
  args.y = std::span<float>(d);
  ASSERT_TRUE(SwigluBackward({}, args).ok());
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::ranges::equal(a, b, [](float one, float other) {  // which NaN is left open
      return (std::isnan(one) && std::isnan(other)) ||
             std::bit_cast<uint32_t>(one) == std::bit_cast<uint32_t>(other);
    });
  };
  EXPECT_TRUE(same(x, dx));
  EXPECT_TRUE(same(d, y));
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(dx[0]) && std::isnan(dx[kWidth]));
}

TEST(Swiglu, RefusesTensorsOfOtherSizes) {
  std::vector<float> x(20), y(10);
  SwigluArgs args = {.rows = 2, .width = 5, .x = View(x), .y = std::span<float>(y)};
  EXPECT_TRUE(Swiglu({}, args).ok());
  args.width = 4;
  EXPECT_EQ(Swiglu({}, args).code(), absl::StatusCode::kInvalidArgument);
  args.width = 0;
  EXPECT_EQ(Swiglu({}, args).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nsa
