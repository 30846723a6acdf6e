#include "kernels/nn/rms_norm.h"

#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

// Σ c·y in fp64: a scalar function of x and weight, differentiated numerically below.
double Objective(const std::vector<double>& x, const std::vector<double>& weight,
                 const std::vector<float>& c, int64_t rows, int64_t dim) {
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += x[r * dim + i] * x[r * dim + i];
    const double rstd = 1.0 / std::sqrt(squares / dim + double{kRmsNormEps});
    for (int64_t i = 0; i < dim; ++i) sum += c[r * dim + i] * x[r * dim + i] * rstd * weight[i];
  }
  return sum;
}

struct Case {
  int64_t rows, dim;
};

class RmsNormTest : public ::testing::TestWithParam<Case> {};

TEST_P(RmsNormTest, ForwardEqualsTheFormula) {
  const auto [rows, dim] = GetParam();
  const std::vector<float> x = RandomValues(rows * dim, 1, 3.0f), weight = RandomValues(dim, 2);
  std::vector<float> y(rows * dim), rstd(rows);
  ASSERT_TRUE(RmsNorm({}, {.rows = rows,
                           .dim = dim,
                           .x = View(x),
                           .weight = View(weight),
                           .y = std::span<float>(y),
                           .rstd = std::span<float>(rstd)})
                  .ok());
  std::vector<double> want(rows * dim);
  double largest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += double{x[r * dim + i]} * x[r * dim + i];
    const double root = 1.0 / std::sqrt(squares / dim + double{kRmsNormEps});
    EXPECT_NEAR(rstd[r], root, root * (dim / 2.0 + 4) * kUnit);
    for (int64_t i = 0; i < dim; ++i) {
      want[r * dim + i] = x[r * dim + i] * root * weight[i];
      largest = std::max(largest, std::abs(want[r * dim + i]));
    }
  }
  // The sum of squares has at most dim roundings, its root half of that; then four operations.
  ExpectWithin(y, want, largest * (dim / 2.0 + 6) * kUnit, "y");
}

TEST(RmsNorm, AddsTheEpsilonThatItIsGiven) {
  const std::vector<float> x(8, 0.5f), weight(8, 2.0f);
  std::vector<float> y(8);
  ASSERT_TRUE(RmsNorm({}, {.rows = 1,
                           .dim = 8,
                           .x = View(x),
                           .weight = View(weight),
                           .y = std::span<float>(y),
                           .eps = 0.75f})
                  .ok());
  for (const float value : y) EXPECT_FLOAT_EQ(value, 1.0f) << "0.5 · 2 / √(0.25 + 0.75)";
}

TEST_P(RmsNormTest, GradientsEqualCentralDifferences) {
  const auto [rows, dim] = GetParam();
  const std::vector<float> x = RandomValues(rows * dim, 3), weight = RandomValues(dim, 4),
                           dy = RandomValues(rows * dim, 5);
  std::vector<float> y(rows * dim), rstd(rows), dx(rows * dim, 1.0f), dweight(dim, 2.0f);
  ASSERT_TRUE(RmsNorm({}, {.rows = rows,
                           .dim = dim,
                           .x = View(x),
                           .weight = View(weight),
                           .y = std::span<float>(y),
                           .rstd = std::span<float>(rstd)})
                  .ok());
  ASSERT_TRUE(RmsNormBackward({}, {.rows = rows,
                                   .dim = dim,
                                   .dy = View(dy),
                                   .x = View(x),
                                   .weight = View(weight),
                                   .rstd = View(rstd),
                                   .dx = std::span<float>(dx),
                                   .dweight = std::span<float>(dweight)})
                  .ok());
  std::vector<double> px(x.begin(), x.end()), pw(weight.begin(), weight.end());
  constexpr double kStep = 1e-5;
  const auto differences = [&](std::vector<double>* at, double already) {
    std::vector<double> want(at->size());
    for (size_t i = 0; i < at->size(); ++i) {
      const double value = (*at)[i];
      (*at)[i] = value + kStep;
      const double up = Objective(px, pw, dy, rows, dim);
      (*at)[i] = value - kStep;
      const double down = Objective(px, pw, dy, rows, dim);
      (*at)[i] = value;
      want[i] = already + (up - down) / (2 * kStep);
    }
    return want;
  };
  // fp32 rounding of sums of dim (dx) or rows (dweight) terms, each at most 4·4; the numerical
  // differences are accurate to about 1e-9.
  ExpectWithin(dx, differences(&px, 1.0), 16 * (dim + 8) * kUnit, "dx");
  ExpectWithin(dweight, differences(&pw, 2.0), 16 * (rows + 8) * kUnit, "dweight");
}

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormTest,
                         ::testing::Values(Case{1, 1}, Case{3, 5}, Case{7, 33}, Case{4, 128}));

TEST(RmsNorm, DoesNotDependOnTheNumberOfThreads) {
  constexpr int64_t kRows = 67, kDim = 72;
  const std::vector<float> x = RandomValues(kRows * kDim, 6), weight = RandomValues(kDim, 7),
                           dy = RandomValues(kRows * kDim, 8);
  ExpectSameBitsForAnyThreads([&] {
    std::vector<float> out(2 * kRows * kDim + kRows + kDim);
    const std::span<float> y(out.data(), kRows * kDim), dx(y.data() + y.size(), kRows * kDim),
        rstd(dx.data() + dx.size(), kRows), dweight(rstd.data() + kRows, kDim);
    EXPECT_TRUE(RmsNorm({}, {kRows, kDim, View(x), View(weight), y, rstd}).ok());
    EXPECT_TRUE(
        RmsNormBackward({}, {kRows, kDim, View(dy), View(x), View(weight), rstd, dx, dweight})
            .ok());
    return out;
  });
}

TEST(RmsNorm, BackwardComputesTheOutputAgain) {
  constexpr int64_t kRows = 5, kDim = 33;
  const std::vector<float> x = RandomValues(kRows * kDim, 6), weight = RandomValues(kDim, 7),
                           dy = RandomValues(kRows * kDim, 8);
  std::vector<float> y(x.size()), again(x.size(), NAN), rstd(kRows), dx(x.size()), dweight(kDim);
  ASSERT_TRUE(
      RmsNorm({}, {kRows, kDim, View(x), View(weight), std::span<float>(y), std::span<float>(rstd)})
          .ok());
  RmsNormBackwardArgs args = {kRows,
                              kDim,
                              View(dy),
                              View(x),
                              View(weight),
                              View(rstd),
                              std::span<float>(dx),
                              std::span<float>(dweight)};
  args.y = std::span<float>(again);
  ASSERT_TRUE(RmsNormBackward({}, args).ok());
  EXPECT_EQ(y, again);
  args.y = std::span<float>(again).first(kDim);
  EXPECT_EQ(RmsNormBackward({}, args).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RmsNorm, CarriesNaNThrough) {
  const std::vector<float> x = {1.0f, NAN, 2.0f}, weight(3, 1.0f);
  std::vector<float> y(3);
  ASSERT_TRUE(RmsNorm({}, {1, 3, View(x), View(weight), std::span<float>(y), {}}).ok());
  EXPECT_TRUE(std::isnan(y[0]));
}

}  // namespace
}  // namespace nsa
