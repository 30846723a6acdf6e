#include "kernels/nn/cross_entropy.h"

#include <gmock/gmock.h>

#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

double RowLoss(const std::vector<double>& logits, int64_t row, int64_t vocab, int32_t target) {
  double sum = 0;
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[row * vocab + v]);
  return std::log(sum) - logits[row * vocab + target];
}

struct LossCase {
  int64_t rows, vocab;
  float scale;
};

class CrossEntropyTest : public ::testing::TestWithParam<LossCase> {};

TEST_P(CrossEntropyTest, LossAndGradientEqualTheFormula) {
  const auto [rows, vocab, spread] = GetParam();
  const std::vector<float> logits = RandomValues(rows * vocab, 1, spread);
  std::vector<int32_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = static_cast<int32_t>((r * 7) % vocab);
  if (rows > 2) targets[2] = -1;
  std::vector<float> row_loss(rows), mean(1), dlogits(rows * vocab);
  ASSERT_TRUE(CrossEntropy({}, {.rows = rows,
                                .vocab = vocab,
                                .logits = View(logits),
                                .targets = std::span<const int32_t>(targets),
                                .row_loss = std::span<float>(row_loss),
                                .mean_loss = std::span<float>(mean),
                                .gradient_scale = 0.5f,
                                .dlogits = std::span<float>(dlogits)})
                  .ok());
  const std::vector<double> exact(logits.begin(), logits.end());
  std::vector<double> want_loss(rows), want_gradient(rows * vocab);
  double sum = 0;
  int64_t predicted = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[r] < 0) continue;
    want_loss[r] = RowLoss(exact, r, vocab, targets[r]);
    sum += want_loss[r];
    ++predicted;
    for (int64_t v = 0; v < vocab; ++v) {
      const double log_p = -RowLoss(exact, r, vocab, static_cast<int32_t>(v));
      want_gradient[r * vocab + v] = 0.5 * (std::exp(log_p) - (v == targets[r] ? 1.0 : 0.0));
    }
  }
  // Error of log-sum-exp: 4 units for each exponential, plus the rounding of logit − max (at most
  // 10·spread units), the fp32 partial sums of at most 1,024/8 terms per lane, and the rounding of
  // the loss itself.
  const double bound = (4 + 10.0 * spread + 130 + 10.0 * spread) * kUnit;
  ExpectWithin(row_loss, want_loss, bound, "row_loss");
  ExpectWithin(dlogits, want_gradient, bound, "dlogits");
  EXPECT_NEAR(mean[0], sum / predicted, bound);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropyTest,
                         ::testing::Values(LossCase{1, 2, 1}, LossCase{5, 17, 3},
                                           LossCase{4, 256, 1}, LossCase{3, 5003, 2}));

// In place of the logits, against central differences.
TEST(CrossEntropy, TheGradientIsTheDerivativeOfTheLoss) {
  constexpr int64_t kRows = 4, kVocab = 37;
  constexpr float kScale = 0.5f;
  const std::vector<float> logits = RandomValues(kRows * kVocab, 1, 3);
  const std::vector<int32_t> targets = {5, 36, -1, 0};
  std::vector<float> row_loss(kRows), mean(1), dlogits = logits;  // in place
  ASSERT_TRUE(CrossEntropy({}, {.rows = kRows,
                                .vocab = kVocab,
                                .logits = View(dlogits),
                                .targets = std::span<const int32_t>(targets),
                                .row_loss = std::span<float>(row_loss),
                                .mean_loss = std::span<float>(mean),
                                .gradient_scale = kScale,
                                .dlogits = std::span<float>(dlogits)})
                  .ok());
  std::vector<double> x(logits.begin(), logits.end()), want_loss(kRows), want(kRows * kVocab);
  for (int64_t r = 0; r < kRows; ++r) {
    if (targets[r] < 0) continue;
    want_loss[r] = RowLoss(x, r, kVocab, targets[r]);
    constexpr double kStep = 1e-5;  // the differences are exact to about 1e-10
    for (int64_t i = r * kVocab; i < (r + 1) * kVocab; ++i) {
      const double at = x[i];
      x[i] = at + kStep;
      const double above = RowLoss(x, r, kVocab, targets[r]);
      x[i] = at - kStep;
      want[i] = kScale * (above - RowLoss(x, r, kVocab, targets[r])) / (2 * kStep);
      x[i] = at;
    }
  }
  ExpectWithin(row_loss, want_loss, 100 * kUnit, "row_loss");
  ExpectWithin(dlogits, want, 100 * kUnit, "dlogits");
  EXPECT_NEAR(mean[0], (want_loss[0] + want_loss[1] + want_loss[3]) / 3, 100 * kUnit);
}

// One row of three logits, and its arguments.
struct OneRow {
  CrossEntropyArgs Args() {
    return {1,
            3,
            View(logits),
            std::span<const int32_t>(targets),
            std::span<float>(row_loss),
            std::span<float>(mean)};
  }

  std::vector<float> logits = std::vector<float>(3);
  std::vector<int32_t> targets = {0};
  std::vector<float> row_loss = {0}, mean = {0};
};

TEST(CrossEntropy, IsLogVForEqualLogits) {
  const std::vector<float> logits(256, 3.0f);
  const std::vector<int32_t> targets = {17};
  std::vector<float> row_loss(1), mean(1);
  ASSERT_TRUE(CrossEntropy({}, {.rows = 1,
                                .vocab = 256,
                                .logits = View(logits),
                                .targets = std::span<const int32_t>(targets),
                                .row_loss = std::span<float>(row_loss),
                                .mean_loss = std::span<float>(mean)})
                  .ok());
  EXPECT_FLOAT_EQ(mean[0], std::log(256.0f));
}

TEST(CrossEntropy, StaysFiniteForLogitsOfAThousand) {
  const std::vector<float> logits = {1000.0f, -1000.0f, 0.0f};
  const std::vector<int32_t> targets = {1};
  std::vector<float> row_loss(1), mean(1), dlogits(3);
  ASSERT_TRUE(CrossEntropy({}, {1, 3, View(logits), std::span<const int32_t>(targets),
                                std::span<float>(row_loss), std::span<float>(mean), 1.0f,
                                std::span<float>(dlogits)})
                  .ok());
  EXPECT_FLOAT_EQ(row_loss[0], 2000.0f);
  EXPECT_FLOAT_EQ(dlogits[1], -1.0f);
}

TEST(CrossEntropy, GivesNaNForNaN) {
  const std::vector<float> logits = {0.0f, NAN, 1.0f};
  const std::vector<int32_t> targets = {0};
  std::vector<float> row_loss(1), mean(1);
  ASSERT_TRUE(CrossEntropy({}, {1, 3, View(logits), std::span<const int32_t>(targets),
                                std::span<float>(row_loss), std::span<float>(mean)})
                  .ok());
  EXPECT_TRUE(std::isnan(mean[0]));
}

TEST(CrossEntropy, ColumnsBehindTheVocabularyAreNotReadAndGetNoGradient) {
  constexpr int64_t kRows = 3, kVocab = 37, kColumns = 40;
  const std::vector<float> dense = RandomValues(kRows * kVocab, 1, 3);
  std::vector<float> wide(kRows * kColumns, NAN);
  for (int64_t r = 0; r < kRows; ++r) {
    std::copy_n(dense.begin() + r * kVocab, kVocab, wide.begin() + r * kColumns);
  }
  const std::vector<int32_t> targets = {5, -1, 36};
  const auto run = [&](std::span<const float> logits, int64_t columns, std::vector<float>* losses,
                       std::vector<float>* dlogits) {
    std::vector<float> mean(1);
    losses->resize(kRows);
    dlogits->assign(logits.size(), NAN);
    EXPECT_TRUE(CrossEntropy({}, {.rows = kRows,
                                  .vocab = kVocab,
                                  .logits = logits,
                                  .targets = std::span<const int32_t>(targets),
                                  .row_loss = std::span<float>(*losses),
                                  .mean_loss = std::span<float>(mean),
                                  .dlogits = std::span<float>(*dlogits),
                                  .columns = columns})
                    .ok());
  };
  std::vector<float> losses, dlogits, wide_losses, wide_dlogits;
  run(dense, 0, &losses, &dlogits);
  run(wide, kColumns, &wide_losses, &wide_dlogits);
  EXPECT_EQ(wide_losses, losses);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      EXPECT_EQ(wide_dlogits[r * kColumns + c], c < kVocab ? dlogits[r * kVocab + c] : 0);
    }
  }
}

TEST(CrossEntropy, RefusesFewerColumnsThanTheVocabulary) {
  OneRow row;
  CrossEntropyArgs args = row.Args();
  args.columns = 2;
  EXPECT_THAT(std::string(CrossEntropy({}, args).message()), HasSubstr("columns: 2"));
}

TEST(CrossEntropy, RefusesATargetOutsideTheVocabulary) {
  const std::vector<float> logits(3);
  const std::vector<int32_t> targets = {3};
  std::vector<float> row_loss(1), mean(1);
  const absl::Status status =
      CrossEntropy({}, {1, 3, View(logits), std::span<const int32_t>(targets),
                        std::span<float>(row_loss), std::span<float>(mean)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("target: 3 (at most 2)"));
}

TEST(CrossEntropy, DoesNotDependOnTheNumberOfThreads) {
  const std::vector<float> logits = RandomValues(33 * 50, 4);
  std::vector<int32_t> targets(33);
  for (int32_t r = 0; r < 33; ++r) targets[r] = r;
  ExpectSameBitsForAnyThreads([&] {
    std::vector<float> out(33 + 1 + 33 * 50);
    const std::span<float> all(out);
    EXPECT_TRUE(CrossEntropy({}, {33, 50, View(logits), std::span<const int32_t>(targets),
                                  all.subspan(0, 33), all.subspan(33, 1), 1.0f, all.subspan(34)})
                    .ok());
    return out;
  });
}

}  // namespace
}  // namespace nsa
