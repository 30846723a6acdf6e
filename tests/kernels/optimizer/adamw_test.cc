#include "kernels/optimizer/adamw.h"

#include <gmock/gmock.h>

#include "kernels/optimizer/global_norm.h"
#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

TEST(AdamW, EqualsTheFormulaOverManySteps) {
  constexpr int64_t kSize = 101, kDecayed = 60;
  const std::vector<AdamWSegment> segments = {{kDecayed, true}, {kSize - kDecayed, false}};
  std::vector<float> p = RandomValues(kSize, 1), m(kSize), v(kSize);
  std::vector<double> want(p.begin(), p.end()), dm(kSize), dv(kSize);
  const double beta1 = 0.9f, beta2 = 0.95f, lr = 0.01f, eps = 1e-8f, decay = 0.1f, scale = 0.5f;
  constexpr int kSteps = 20;
  for (int k = 1; k <= kSteps; ++k) {
    const std::vector<float> g = RandomValues(kSize, 100 + k);
    ASSERT_TRUE(AdamW({}, {.parameters = std::span<float>(p),
                           .gradients = View(g),
                           .m = std::span<float>(m),
                           .v = std::span<float>(v),
                           .segments = segments,
                           .k = k,
                           .lr = 0.01f,
                           .weight_decay = 0.1f,
                           .gradient_scale = 0.5f})
                    .ok());
    for (int64_t i = 0; i < kSize; ++i) {
      const double gradient = scale * g[i];
      dm[i] = beta1 * dm[i] + (1 - beta1) * gradient;
      dv[i] = beta2 * dv[i] + (1 - beta2) * gradient * gradient;
      const double mean = dm[i] / (1 - std::pow(beta1, k));
      const double square = dv[i] / (1 - std::pow(beta2, k));
      want[i] -= lr * (mean / (std::sqrt(square) + eps) + (i < kDecayed ? decay * want[i] : 0.0));
    }
  }
  // A step changes p by about lr and rounds it once (|p| ≤ 4); moments have about 10 roundings.
  ExpectWithin(p, want, kSteps * (4 + 0.01 * 20 * 4) * kUnit, "p");
  ExpectWithin(m, dm, 20 * kUnit, "m");
  ExpectWithin(v, dv, 20 * kUnit, "v");
}

TEST(AdamW, LeavesSegmentsOfAnotherOptimizerAlone) {
  const std::vector<AdamWSegment> parts = {
      {3, true, false}, {4, true}, {2, false, false}, {1, false}};
  std::vector<float> p = RandomValues(10, 1), m(10), v(10);
  const std::vector<float> before = p, g = RandomValues(10, 2);
  ASSERT_TRUE(AdamW({}, {.parameters = std::span<float>(p),
                         .gradients = View(g),
                         .m = std::span<float>(m),
                         .v = std::span<float>(v),
                         .segments = parts,
                         .lr = 0.1f})
                  .ok());
  for (const int i : {0, 1, 2, 7, 8}) {
    EXPECT_EQ(p[i], before[i]) << i;
    EXPECT_EQ(m[i], 0) << i;
    EXPECT_EQ(v[i], 0) << i;
  }
  for (const int i : {3, 4, 5, 6, 9}) EXPECT_NE(p[i], before[i]) << i;
}

TEST(AdamW, MovesAWeightOfOneWithALearningRateOf1e4) {
  std::vector<float> p = {1.0f}, m(1), v(1);
  const std::vector<float> g = {1e-3f};
  const std::vector<AdamWSegment> segments = {{1, false}};
  for (int k = 1; k <= 10; ++k) {
    ASSERT_TRUE(AdamW({}, {.parameters = std::span<float>(p),
                           .gradients = View(g),
                           .m = std::span<float>(m),
                           .v = std::span<float>(v),
                           .segments = segments,
                           .k = k,
                           .lr = 1e-4f})
                    .ok());
  }
  // A constant gradient moves p by lr per step, which bf16 parameters would round away.
  EXPECT_NEAR(p[0], 1.0 - 10 * 1e-4, 10 * 2 * kUnit + 10 * 1e-4 * 1e-4);
}

TEST(AdamW, RefusesSegmentsThatDoNotCoverTheParameters) {
  std::vector<float> p(3), m(3), v(3);
  const std::vector<float> g(3);
  const std::vector<AdamWSegment> segments = {{2, true}};
  const absl::Status status = AdamW({}, {.parameters = std::span<float>(p),
                                         .gradients = View(g),
                                         .m = std::span<float>(m),
                                         .v = std::span<float>(v),
                                         .segments = segments});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("they cover 2 elements (expected 3)"));
}

TEST(GlobalNorm, EqualsTheRootOfTheSumOfSquares) {
  const std::vector<float> values = RandomValues(100003, 2);
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  ExpectSameBitsForAnyThreads([&] {
    std::vector<float> norm(1);
    EXPECT_TRUE(GlobalNorm({}, {.values = View(values), .norm = std::span<float>(norm)}).ok());
    EXPECT_FLOAT_EQ(norm[0], static_cast<float>(std::sqrt(squares)));
    return norm;
  });
}

// A part has the same sum wherever it is computed, and the norm does not depend on who did it.
TEST(GlobalNorm, IsMadeOfTheSumsOfParts) {
  const std::vector<float> values = RandomValues(100003, 2);
  std::vector<float> whole(1), norm(1);
  ASSERT_TRUE(GlobalNorm({}, {.values = View(values), .norm = std::span<float>(whole)}).ok());
  for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{
           {0, 100003}, {0, 50000, 100003}, {0, 7, 7, 60001, 100003}}) {
    std::vector<double> sums;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const ConstTensor part(values.data() + cuts[i], cuts[i + 1] - cuts[i], DType::kF32);
      ASSERT_TRUE(SquareSum({}, {.values = part, .sum = &sums.emplace_back(-1)}).ok());
    }
    const absl::Status status = NormOfSums({}, {.sums = sums.data(),
                                                .count = static_cast<int32_t>(sums.size()),
                                                .norm = std::span<float>(norm)});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_FLOAT_EQ(norm[0], whole[0]);
    if (sums.size() == 1) {
      EXPECT_EQ(norm[0], whole[0]) << "one part is the whole";
    }
  }
}

TEST(GlobalNorm, OfPartsRefusesMissingMemory) {
  std::vector<float> values(3), norm(1);
  const double sum = 0;
  EXPECT_THAT(std::string(SquareSum({}, {.values = View(values)}).message()),
              HasSubstr("sum: null"));
  EXPECT_THAT(std::string(NormOfSums({}, {.count = 1, .norm = std::span<float>(norm)}).message()),
              HasSubstr("sums: null"));
  EXPECT_THAT(std::string(NormOfSums({}, {.sums = &sum, .norm = std::span<float>(norm)}).message()),
              HasSubstr("count: 0 (at least 1)"));
}

TEST(GlobalNorm, DoesNotOverflowWhereSquaresWouldInFp32) {
  const std::vector<float> values = {3e30f, 4e30f};
  std::vector<float> norm(1);
  ASSERT_TRUE(GlobalNorm({}, {.values = View(values), .norm = std::span<float>(norm)}).ok());
  EXPECT_FLOAT_EQ(norm[0], 5e30f);
}

TEST(GlobalNorm, IsNotFiniteWhenAValueIsNot) {
  for (const float bad : {static_cast<float>(NAN), static_cast<float>(INFINITY)}) {
    std::vector<float> values(5000, 1.0f), norm(1);
    values[4500] = bad;
    ASSERT_TRUE(GlobalNorm({}, {.values = View(values), .norm = std::span<float>(norm)}).ok());
    EXPECT_FALSE(std::isfinite(norm[0]));
  }
}

}  // namespace
}  // namespace nsa
