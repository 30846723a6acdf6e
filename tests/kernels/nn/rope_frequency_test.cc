#include "kernels/nn/rope_frequency.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace nsa {
namespace {

std::vector<double> Frequencies(double base, int head_dim, const RopeScaling& scaling) {
  std::vector<double> frequencies;
  for (int pair = 0; pair < head_dim / 2; ++pair) {
    frequencies.push_back(RopeFrequency(base, pair, head_dim, scaling));
  }
  return frequencies;
}

TEST(RopeFrequency, WithoutScalingIsAPowerOfTheBase) {
  for (int pair = 0; pair < 32; ++pair) {
    EXPECT_EQ(RopeFrequency(10000, pair, 64, {}), std::pow(10000.0, -2.0 * pair / 64));
  }
}

// Llama 3.1: factor 8 from 8,192 tokens on, base 500,000, heads of 128. The wavelengths of
// 8,192 / 4 and 8,192 / 1 tokens are those between which pairs are mixed.
TEST(RopeFrequency, Llama3KeepsFastPairsAndDividesSlowOnes) {
  const RopeScaling scaling = {
      .kind = RopeScaling::Kind::kLlama3, .factor = 8, .original = 8192, .low = 1, .high = 4};
  const std::vector<double> plain = Frequencies(500000, 128, {}),
                            scaled = Frequencies(500000, 128, scaling);
  int kept = 0, divided = 0;
  for (int pair = 0; pair < 64; ++pair) {
    const double wavelength = 2 * M_PI / plain[pair];
    if (wavelength < 8192.0 / 4) {
      EXPECT_DOUBLE_EQ(scaled[pair], plain[pair]) << pair;
      ++kept;
    } else if (wavelength > 8192.0) {
      EXPECT_DOUBLE_EQ(scaled[pair], plain[pair] / 8) << pair;
      ++divided;
    } else {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      EXPECT_NEAR(scaled[pair], (1 - smooth) * plain[pair] / 8 + smooth * plain[pair],
                  1e-15 * plain[pair]);
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(divided, 29);
}

// Qwen2.5 with YaRN: factor 4 from 32,768 tokens on, base 1,000,000, heads of 128. The ramp runs
// over the pairs from ⌊64 · ln(32768 / (32 · 2π)) / ln 1e6⌋ = 23 to
// ⌈64 · ln(32768 / 2π) / ln 1e6⌉ = 40.
TEST(RopeFrequency, YarnHasARampOverThePairs) {
  const RopeScaling scaling = {
      .kind = RopeScaling::Kind::kYarn, .factor = 4, .original = 32768, .low = 1, .high = 32};
  const std::vector<double> plain = Frequencies(1e6, 128, {}),
                            scaled = Frequencies(1e6, 128, scaling);
  for (int pair = 0; pair <= 23; ++pair) EXPECT_DOUBLE_EQ(scaled[pair], plain[pair]) << pair;
  for (int pair = 40; pair < 64; ++pair) EXPECT_DOUBLE_EQ(scaled[pair], plain[pair] / 4) << pair;
  const double ramp = (30 - 23) / 17.0;
  EXPECT_NEAR(scaled[30], ramp * plain[30] / 4 + (1 - ramp) * plain[30], 1e-15 * plain[30]);
}

TEST(RopeScaling, HasLimits) {
  const RopeScaling good = {
      .kind = RopeScaling::Kind::kLlama3, .factor = 8, .original = 8192, .low = 1, .high = 4};
  EXPECT_TRUE(Validate(good).ok());
  EXPECT_TRUE(Validate(RopeScaling{.factor = -1}).ok()) << "none is used";
  for (const auto change :
       {+[](RopeScaling* s) { s->factor = 0.5; }, +[](RopeScaling* s) { s->factor = NAN; },
        +[](RopeScaling* s) { s->original = 0; }, +[](RopeScaling* s) { s->low = 0; },
        +[](RopeScaling* s) { s->high = 1; }, +[](RopeScaling* s) { s->high = INFINITY; }}) {
    RopeScaling scaling = good;
    change(&scaling);
    EXPECT_EQ(Validate(scaling).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace nsa
