#include "worker/train/score/draw.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"

namespace nsa::train {
namespace {

using testing::DoubleNear;
using testing::Pointwise;

// The share of each token among draws with random numbers spread evenly over [0, 1).
std::vector<double> Shares(const std::vector<float>& logits, const DrawOptions& options,
                           int32_t excluded = -1) {
  constexpr int kDraws = 100'000;
  std::vector<double> shares(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    shares[DrawToken(logits, options, (i + 0.5) / kDraws, excluded)] += 1.0 / kDraws;
  }
  return shares;
}

std::vector<float> Logits(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 2));
  return logits;
}

// Equal to the draws' resolution, and the rounding of the logits.
auto Are(const std::vector<double>& shares) { return Pointwise(DoubleNear(3e-5), shares); }

const std::vector<double>& Some() {
  static const auto* const kSome = new std::vector<double>{0.1, 0.5, 0.15, 0.25};
  return *kSome;
}

TEST(DrawToken, DrawsInProportionToTheWeightsAndNeverTheExcluded) {
  const std::vector<float> logits = {10, 0, std::log(3.0f)};  // probabilities 1 : 3 without token 0
  EXPECT_EQ(DrawToken(logits, {.temperature = 1}, 0.0, 0), 1);
  EXPECT_EQ(DrawToken(logits, {.temperature = 1}, 0.249, 0), 1);
  EXPECT_EQ(DrawToken(logits, {.temperature = 1}, 0.251, 0), 2);
  EXPECT_EQ(DrawToken(logits, {.temperature = 1}, 0.9999999999, 0), 2);
  EXPECT_EQ(DrawToken(logits, {.temperature = 0.5}, 0.0999, 0), 1);  // probabilities 1 : 9
  EXPECT_EQ(DrawToken(logits, {.temperature = 0.5}, 0.1001, 0), 2);
  EXPECT_EQ(DrawToken(logits, {.temperature = 0}, 0.1, 0), 2);
  EXPECT_EQ(DrawToken(logits, {.temperature = 0}, 0.1, 2), 0);
}

TEST(DrawToken, TheTemperatureIsAPowerOfTheProbabilities) {
  EXPECT_THAT(Shares(Logits(Some()), {.temperature = 1}), Are(Some()));
  const double half = std::sqrt(0.1) + std::sqrt(0.5) + std::sqrt(0.15) + std::sqrt(0.25);
  EXPECT_THAT(Shares(Logits(Some()), {.temperature = 2}),
              Are({std::sqrt(0.1) / half, std::sqrt(0.5) / half, std::sqrt(0.15) / half,
                   std::sqrt(0.25) / half}));
  EXPECT_THAT(Shares(Logits(Some()), {.temperature = 0}), Are({0, 1, 0, 0}));
}

TEST(DrawToken, TopKKeepsTheLikeliest) {
  const auto shares = [](int64_t k) {
    return Shares(Logits(Some()), {.temperature = 1, .top_k = k});
  };
  EXPECT_THAT(shares(1), Are({0, 1, 0, 0}));
  EXPECT_THAT(shares(2), Are({0, 2.0 / 3, 0, 1.0 / 3}));
  EXPECT_THAT(shares(3), Are({0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9}));
  EXPECT_THAT(shares(4), Are(Some()));
  EXPECT_THAT(shares(1000), Are(Some()));
}

TEST(DrawToken, TopPKeepsTheLikeliestThatTogetherHaveIt) {
  const auto shares = [](double p) {
    return Shares(Logits(Some()), {.temperature = 1, .top_p = p});
  };
  EXPECT_THAT(shares(1e-9), Are({0, 1, 0, 0})) << "one is always left";
  EXPECT_THAT(shares(0.499), Are({0, 1, 0, 0}));
  EXPECT_THAT(shares(0.501), Are({0, 2.0 / 3, 0, 1.0 / 3}));
  EXPECT_THAT(shares(0.749), Are({0, 2.0 / 3, 0, 1.0 / 3}));
  EXPECT_THAT(shares(0.751), Are({0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9}));
  EXPECT_THAT(shares(0.901), Are(Some()));
  EXPECT_THAT(shares(1), Are(Some()));
}

TEST(DrawToken, TopPCountsWithinTheTopKAtTheTemperature) {
  const std::vector<float> logits = Logits(Some());
  // Among the first three 0.5 is 5/9 and 0.5 + 0.25 are 7.5/9.
  EXPECT_THAT(Shares(logits, {.temperature = 1, .top_k = 3, .top_p = 0.54}), Are({0, 1, 0, 0}));
  EXPECT_THAT(Shares(logits, {.temperature = 1, .top_k = 3, .top_p = 0.57}),
              Are({0, 2.0 / 3, 0, 1.0 / 3}));
  // Squared: 0.25, 0.0625, 0.0225 and 0.01 of 0.345; the first is 0.7246 of it.
  EXPECT_THAT(Shares(logits, {.temperature = 0.5, .top_p = 0.72}), Are({0, 1, 0, 0}));
  EXPECT_THAT(Shares(logits, {.temperature = 0.5, .top_p = 0.73}), Are({0, 0.8, 0, 0.2}));
}

TEST(DrawToken, TheExcludedTokenTakesNoPlace) {
  const std::vector<float> logits = Logits(Some());
  EXPECT_THAT(Shares(logits, {.temperature = 1, .top_k = 2}, 1), Are({0, 0, 0.375, 0.625}));
  // Half of what is left: 0.25 of 0.5.
  EXPECT_THAT(Shares(logits, {.temperature = 1, .top_p = 0.49}, 1), Are({0, 0, 0, 1}));
  EXPECT_THAT(Shares(logits, {.temperature = 1, .top_p = 0.51}, 1), Are({0, 0, 0.375, 0.625}));
}

TEST(DrawToken, OfEquallyLikelyTokensTheLowerIsKept) {
  const std::vector<float> logits = {1, 2, 2, 2};
  EXPECT_THAT(Shares(logits, {.temperature = 1, .top_k = 2}), Are({0, 0.5, 0.5, 0}));
  EXPECT_EQ(DrawToken(logits, {.temperature = 0}, 0.9, -1), 1);
}

}  // namespace
}  // namespace nsa::train
