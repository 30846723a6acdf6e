// The softcap of logits.
#include <gtest/gtest.h>

#include "kernels/nn/cross_entropy.h"
#include "kernels/vector_exp.h"
#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

TEST(VectorTanh, IsWithinThreeUnitsInTheLastPlace) {
  for (double magnitude = 1e-30; magnitude < 100; magnitude *= 1.0007) {
    for (const double sign : {1.0, -1.0}) {
      const auto at = static_cast<float>(sign * magnitude);
      const double want = std::tanh(double{at});
      ASSERT_NEAR(VectorTanh(at), want, 3 * 2 * kUnit * std::abs(want)) << at;
    }
  }
  EXPECT_EQ(VectorTanh(0.0f), 0.0f);
}

TEST(VectorTanh, IsOneForInfinityAndNaNForNaN) {
  EXPECT_EQ(VectorTanh(INFINITY), 1.0f);
  EXPECT_EQ(VectorTanh(-INFINITY), -1.0f);
  EXPECT_EQ(VectorTanh(1e30f), 1.0f);
  EXPECT_TRUE(std::isnan(VectorTanh(NAN)));
}

TEST(SoftCap, IsTheFormula) {
  const std::vector<float> x = RandomValues(1003, 1, 20);
  for (const float cap : {1.0f, 30.0f, 1000.0f}) {
    std::vector<float> y = x;
    SoftCap(cap, y);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = cap * std::tanh(double{x[i]} / cap);
      ASSERT_NEAR(y[i], want, 5 * 2 * kUnit * std::abs(want)) << x[i] << " with " << cap;
      ASSERT_LE(std::abs(y[i]), cap);
    }
  }
}

TEST(SoftCap, OfZeroChangesNothing) {
  const std::vector<float> x = RandomValues(100, 2, 20);
  std::vector<float> y = x;
  SoftCap(0, y);
  EXPECT_EQ(y, x);
}

TEST(SoftCap, KeepsNaN) {
  std::vector<float> x = {1, NAN, INFINITY};
  SoftCap(4, x);
  EXPECT_FLOAT_EQ(x[0], 4 * std::tanh(0.25f));
  EXPECT_TRUE(std::isnan(x[1]));
  EXPECT_EQ(x[2], 4);
}

}  // namespace
}  // namespace nsa
