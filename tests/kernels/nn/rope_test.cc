#include "kernels/nn/rope.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

constexpr int32_t kBatch = 2, kTokens = 50, kHeads = 3, kWidth = 16;
constexpr int64_t kSize = int64_t{kBatch} * kTokens * kHeads * kWidth;

RopeArgs Args(const std::vector<float>& x, std::vector<float>& y) {
  return {.batch = kBatch,
          .seq_len = kTokens,
          .heads = kHeads,
          .head_dim = kWidth,
          .x = Span(x),
          .y = Span(y)};
}

// The rounding of a sum of two products of numbers ≤ 1 (2u) and of sine and cosine (2u): 4u.
constexpr double kBound = 4 * kUnit;

TEST(Rope, EqualsTheFormula) {
  for (const float scale : {1.0f, 8.0f}) {
    const std::vector<float> x = Random(kSize, 1);
    std::vector<float> y = Poisoned(kSize);
    RopeArgs args = Args(x, y);
    args.scale = scale;
    ASSERT_OK(Rope({}, args));
    EXPECT_TRUE(Close("y", y, oracle::Rope(Double(x), kTokens, kHeads, kWidth, 10000, scale),
                      {{"b", kBatch}, {"t", kTokens}, {"a", kHeads}, {"c", kWidth}}, kBound));
  }
}

TEST(Rope, WithoutRotationGivesTheBitsOfX) {
  const std::vector<float> x = Random(kSize, 1);
  std::vector<float> y = Poisoned(kSize);
  RopeArgs args = Args(x, y);
  args.scale = kNoRotation;
  ASSERT_OK(Rope({}, args));
  EXPECT_EQ(y, x);
}

// Stretched so that some pairs of each are kept, some mixed and some divided.
constexpr RopeScaling kScalings[] = {
    {.kind = RopeScaling::Kind::kLlama3, .factor = 8, .original = 64, .low = 1, .high = 4},
    {.kind = RopeScaling::Kind::kYarn, .factor = 4, .original = 300, .low = 1, .high = 32}};

TEST(Rope, StretchesItsFrequencies) {
  const std::vector<float> x = Random(kSize, 1);
  const oracle::Array plain = oracle::Rope(Double(x), kTokens, kHeads, kWidth, 10000, 2);
  for (const RopeScaling& scaling : kScalings) {
    std::vector<float> y = Poisoned(kSize), back = Poisoned(kSize);
    RopeArgs args = Args(x, y);
    args.scale = 2, args.scaling = scaling;
    ASSERT_OK(Rope({}, args));
    const oracle::Array want = oracle::Rope(Double(x), kTokens, kHeads, kWidth, 10000, 2, scaling);
    EXPECT_TRUE(Close("y", y, want, {{"i", kSize}}, kBound));
    EXPECT_GT(std::abs(want.back() - plain.back()), 100 * kBound);
    args.x = Span(std::as_const(y)), args.y = Span(back), args.inverse = true;
    ASSERT_OK(Rope({}, args));
    EXPECT_TRUE(Close("x", back, x, {{"i", kSize}}, 2 * kBound));
  }
}

TEST(Rope, EveryHeadTurnsByTheSameAngles) {
  std::vector<float> x = Random(kSize, 2), y = Poisoned(kSize);
  for (int64_t i = 0; i < kSize; ++i)
    x[i] = x[i / (kHeads * kWidth) * kHeads * kWidth + i % kWidth];
  ASSERT_OK(Rope({}, Args(x, y)));
  for (int64_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(y[i], y[i / (kHeads * kWidth) * kHeads * kWidth + i % kWidth]);
  }
}

// The rows of a call that begins at a position are those of a call from 0 on, bit for bit.
TEST(Rope, BeginsAtAnyPosition) {
  const std::vector<float> x = Random(kSize, 5);
  std::vector<float> whole = Poisoned(kSize), part = Poisoned(kSize);
  constexpr int32_t kFirst = 31;
  constexpr int64_t kRow = kHeads * kWidth;
  RopeArgs args = Args(x, whole);
  args.batch = 1, args.x.size = args.y.size = kTokens * kRow;
  ASSERT_OK(Rope({}, args));
  args.seq_len = kTokens - kFirst, args.first = kFirst;
  args.x = std::span(x).subspan(kFirst * kRow, args.seq_len * kRow);
  args.y = std::span(part).first(args.seq_len * kRow);
  ASSERT_OK(Rope({}, args));
  for (int64_t i = 0; i < args.seq_len * kRow; ++i) {
    ASSERT_EQ(part[i], whole[kFirst * kRow + i]) << i;
  }
}

// q·k of two rotated rows depends only on their distance, for every head.
TEST(Rope, ProductsDependOnTheDistanceOnly) {
  const std::vector<float> row = Random(2 * kWidth, 3);
  constexpr int32_t kLong = 1200;
  std::vector<float> q(kLong * kWidth), k(kLong * kWidth);
  for (int64_t i = 0; i < kLong * kWidth; ++i) {
    q[i] = row[i % kWidth];
    k[i] = row[kWidth + i % kWidth];
  }
  for (auto* x : {&q, &k}) {
    ASSERT_OK(Rope({}, {.batch = 1,
                        .seq_len = kLong,
                        .heads = 1,
                        .head_dim = kWidth,
                        .x = Span(*x),
                        .y = Span(*x)}));
  }
  const auto product = [&](int64_t m, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < kWidth; ++c) {
      sum += static_cast<double>(q[m * kWidth + c]) * k[n * kWidth + c];
    }
    return sum;
  };
  for (const int64_t distance : {0, 1, 10, 100}) {
    for (const int64_t at : {0, 90, 1000}) {
      // dk products of two rotated numbers, each accurate to kBound.
      EXPECT_NEAR(product(at + distance, at), product(distance, 0), 2 * kWidth * kBound);
    }
  }
}

TEST(Rope, InverseGivesBackWhatWasTurnedAlsoInPlace) {
  const std::vector<float> x = Random(kSize, 4);
  std::vector<float> y = x;
  RopeArgs args = Args(y, y);
  ASSERT_OK(Rope({}, args));
  args.inverse = true;
  ASSERT_OK(Rope({}, args));
  EXPECT_TRUE(Close("x", y, x, {{"i", kSize}}, 2 * kBound));
}

// A head of zeros and a tiny one, whose mean square is far below 1e-6, are among the heads.
std::vector<float> HeadsOfAllSizes(uint32_t seed) {
  std::vector<float> x = Random(kSize, seed, 3.0f);
  std::fill_n(x.begin(), kWidth, 0.0f);
  for (int64_t i = kWidth; i < 2 * kWidth; ++i) x[i] *= 1e-5f;
  return x;
}

TEST(Rope, NormalizedEqualsTheFormulaAndKeepsTheFactor) {
  const std::vector<float> x = HeadsOfAllSizes(6);
  std::vector<float> y = Poisoned(kSize), rstd = Poisoned(kSize / kWidth), in_place = x;
  RopeArgs args = Args(x, y);
  args.normalize = true, args.rstd = Span(rstd);
  ASSERT_OK(Rope({}, args));
  const oracle::Array unit = oracle::Normalized(Double(x), kWidth);
  // Numbers up to √16, the sum of 16 squares and its root: 16 + 4 roundings.
  EXPECT_TRUE(Close("y", y, oracle::Rope(unit, kTokens, kHeads, kWidth, 10000, 1), {{"i", kSize}},
                    4 * 20 * kUnit));
  for (int64_t head = 1; head < kSize / kWidth; ++head) {
    const double want = unit[head * kWidth] / x[head * kWidth];
    ASSERT_NEAR(rstd[head], want, 20 * kUnit * want) << head;
  }
  EXPECT_FLOAT_EQ(rstd[0], 1e3f);
  args = Args(in_place, in_place);
  args.normalize = true;
  ASSERT_OK(Rope({}, args));
  EXPECT_EQ(in_place, y);
}

TEST(Rope, NormalizesWithTheEpsOfTheModel) {
  const std::vector<float> x = HeadsOfAllSizes(6);
  std::vector<float> y = Poisoned(kSize), rstd = Poisoned(kSize / kWidth);
  RopeArgs args = Args(x, y);
  args.normalize = true, args.eps = 0.25f, args.rstd = Span(rstd);
  ASSERT_OK(Rope({}, args));
  const oracle::Array unit = oracle::Normalized(Double(x), kWidth, 0.25);
  EXPECT_TRUE(Close("y", y, oracle::Rope(unit, kTokens, kHeads, kWidth, 10000, 1), {{"i", kSize}},
                    4 * 20 * kUnit));
  EXPECT_FLOAT_EQ(rstd[0], 2.0f) << "of zeros";
}

TEST(Rope, TheGradientOfANormalizedRotationEqualsCentralDifferences) {
  const std::vector<float> x = HeadsOfAllSizes(7), dy = Random(kSize, 8);
  std::vector<float> y = Poisoned(kSize), rstd = Poisoned(kSize / kWidth), dx = Poisoned(kSize);
  RopeArgs args = Args(x, y);
  args.normalize = true, args.rstd = Span(rstd);
  ASSERT_OK(Rope({}, args));
  args = Args(dy, dx);
  args.normalize = args.inverse = true;
  args.y_forward = Span(std::as_const(y)), args.rstd_forward = Span(std::as_const(rstd));
  ASSERT_OK(Rope({}, args));
  // The loss of a head depends on that head alone, so a head is moved at a time.
  oracle::Array exact = Double(x);
  for (int64_t i = 0; i < kSize; ++i) {
    const int64_t head = i / kWidth * kWidth, t = i / (kWidth * kHeads) % kTokens;
    const auto loss = [&](double step) {
      oracle::Array row(exact.begin() + head, exact.begin() + head + kWidth);
      row[i - head] += step;
      row = oracle::Normalized(row, kWidth);
      // The row as the last of t + 1 tokens, where it turns by its angle.
      oracle::Array tokens(t * kWidth, 0.0);
      tokens.insert(tokens.end(), row.begin(), row.end());
      const oracle::Array turned = oracle::Rope(tokens, t + 1, 1, kWidth, 10000, 1);
      double sum = 0;
      for (int64_t c = 0; c < kWidth; ++c) sum += turned[t * kWidth + c] * dy[head + c];
      return sum;
    };
    const double step = std::max(1e-8, 1e-5 * std::abs(exact[i]));
    const double want = (loss(step) - loss(-step)) / (2 * step);
    const double scale = rstd[i / kWidth];
    ASSERT_NEAR(dx[i], want, 40 * kUnit * 4 * scale + 1e-7 * scale) << i;
  }
  std::vector<float> in_place = dy;
  args.x = Span(std::as_const(in_place)), args.y = Span(in_place);
  ASSERT_OK(Rope({}, args));
  EXPECT_EQ(in_place, dx);
}

TEST(Rope, RefusesWrongSizesTypesAndFields) {
  std::vector<float> x(kSize), y(kSize);
  const auto message = [&](auto change) {
    RopeArgs args = Args(x, y);
    change(&args);
    return Rope({}, args);
  };
  using ::testing::HasSubstr;
  const auto refuses = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(message([](RopeArgs* a) { a->y.size -= 1; }),
              refuses("y: 4799 elements (must be 4800"));
  EXPECT_THAT(message([](RopeArgs* a) { a->x.data = nullptr; }), refuses("x: no memory"));
  EXPECT_THAT(message([](RopeArgs* a) { a->y.dtype = DType::kBf16; }), refuses("y: type bf16"));
  EXPECT_THAT(message([](RopeArgs* a) { a->head_dim = 15; }), refuses("head_dim=15"));
  EXPECT_THAT(message([](RopeArgs* a) { a->base = 1; }), refuses("rope_base"));
  EXPECT_THAT(message([](RopeArgs* a) { a->scale = 0; }), refuses("rope_scale"));
  EXPECT_THAT(message([&](RopeArgs* a) { a->normalize = true, a->rstd = Span(x); }),
              refuses("rstd: 4800 elements (must be 300"));
  EXPECT_THAT(message([](RopeArgs* a) { a->normalize = a->inverse = true; }),
              refuses("y_forward: "));
  EXPECT_THAT(message([&](RopeArgs* a) {
                a->normalize = a->inverse = true;
                a->y_forward = Span(std::as_const(y)), a->rstd_forward = Span(std::as_const(y));
              }),
              refuses("rstd_forward: 4800 elements (must be 300"));
}

}  // namespace
}  // namespace nsa::testing
