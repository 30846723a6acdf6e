#include "kernels/nn/bias.h"

#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

constexpr int64_t kRows = 41, kWidth = 75;

TEST(Bias, IsAddedToEveryRow) {
  const std::vector<float> before = RandomValues(kRows * kWidth, 1), bias = RandomValues(kWidth, 2);
  std::vector<float> y = before;
  ASSERT_TRUE(
      AddBias({}, {.rows = kRows, .width = kWidth, .bias = View(bias), .y = std::span<float>(y)})
          .ok());
  for (int64_t i = 0; i < kRows * kWidth; ++i) EXPECT_EQ(y[i], before[i] + bias[i % kWidth]);
}

TEST(Bias, ItsGradientIsTheSumOfTheRowsAndIsAdded) {
  const std::vector<float> dy = RandomValues(kRows * kWidth, 3);
  const auto gradient = [&] {
    std::vector<float> dbias(kWidth, 2.0f);
    EXPECT_TRUE(
        BiasGradient(
            {}, {.rows = kRows, .width = kWidth, .dy = View(dy), .dbias = std::span<float>(dbias)})
            .ok());
    return dbias;
  };
  std::vector<double> want(kWidth, 2.0);
  for (int64_t i = 0; i < kRows * kWidth; ++i) want[i % kWidth] += dy[i];
  // 42 sums of numbers below 32.
  ExpectWithin(gradient(), want, 42 * 32 * kUnit, "dbias");
  ExpectSameBitsForAnyThreads(gradient);
}

TEST(Bias, RefusesTensorsOfOtherSizes) {
  std::vector<float> y(6), bias(3);
  EXPECT_EQ(
      AddBias({}, {.rows = 2, .width = 2, .bias = View(bias), .y = std::span<float>(y)}).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      BiasGradient({}, {.rows = 3, .width = 3, .dy = View(y), .dbias = std::span<float>(bias)})
          .code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nsa
