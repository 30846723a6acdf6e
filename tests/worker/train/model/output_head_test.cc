// Logits in pieces: the same losses and gradients as with all logits in memory, whose derivation
// model_test.cc checks.
#include "worker/train/model/output_head.h"

#include <gtest/gtest.h>

#include "common/estimate/memory/logits.h"
#include "tests/worker/train/model/model_bench.h"
#include "tests/worker/train/model/output_head_case.h"

namespace nsa::train {
namespace {

constexpr int64_t kAll = HeadCase::kRows;

// fp32 sums in another order.
constexpr double kBound = 1e-5;

TEST(OutputHead, PiecesOfTheRowsGiveTheResultsOfAll) {
  HeadCase head({});
  for (const bool overwrite : {false, true}) {
    const HeadCase::Results want = head.Run(kAll, /*loss_in_backward=*/false, overwrite);
    EXPECT_GT(want.mean_loss, 0);
    EXPECT_EQ(want.row_loss[3], 0) << "predicts nothing";
    for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{24}}) {
      const HeadCase::Results got = head.Run(rows, /*loss_in_backward=*/false, overwrite);
      EXPECT_NEAR(got.mean_loss, want.mean_loss, kBound * want.mean_loss) << rows;
      EXPECT_LE(Difference(got.row_loss, want.row_loss), kBound) << rows;
      EXPECT_LE(Difference(got.dx, want.dx), kBound) << rows;
      EXPECT_LE(Difference(got.gradients, want.gradients), kBound) << rows;
    }
  }
}

TEST(OutputHead, LossesOfBackwardAreThoseOfForward) {
  HeadCase head({});
  for (const int64_t rows : {int64_t{7}, kAll}) {
    const HeadCase::Results want = head.Run(rows, /*loss_in_backward=*/false, false);
    const HeadCase::Results got = head.Run(rows, /*loss_in_backward=*/true, false);
    EXPECT_EQ(got.mean_loss, want.mean_loss) << rows;
    EXPECT_EQ(got.row_loss, want.row_loss) << rows;
    EXPECT_EQ(got.dx, want.dx) << rows;
    EXPECT_EQ(got.gradients, want.gradients) << rows;
  }
}

TEST(Model, BackwardCanComputeTheLoss) {
  Bench bench(TinyJob()), other(TinyJob());
  const auto loss = bench.model->Forward({}, {bench.tokens, bench.targets});
  ASSERT_OK(loss);
  bench.Backward();
  ASSERT_OK(other.model->Load({}, 0, {other.tokens, other.targets}));
  ASSERT_OK(other.model->EnqueueForward({}, 0, /*loss_in_backward=*/true));
  other.Backward();
  ASSERT_OK(other.model->EnqueueReadout({}));
  EXPECT_EQ(other.model->Collect(0), *loss);
  EXPECT_TRUE(std::ranges::equal(other.gradients.flat(), bench.gradients.flat()));
  EXPECT_TRUE(std::ranges::equal(other.model->token_losses(), bench.model->token_losses()));
}

TEST(LogitRows, AreEqualPiecesOfAtMostAGibibyte) {
  EXPECT_EQ(LogitRows(65536, 256), 65536) << "bytes: all rows of a large batch";
  EXPECT_EQ(LogitRows(8192, 50304), 8192);
  EXPECT_EQ(LogitRows(32768, 50304), 8192) << "four pieces";
  EXPECT_EQ(LogitRows(32769, 50304), 8320) << "four; the last is shorter";
  EXPECT_EQ(LogitRows(1000, int64_t{1} << 25), 128) << "never fewer than a tile";
  for (const int64_t rows : {20000, 65536, 1048576}) {
    EXPECT_LE(LogitRows(rows, 50304) * 50304, int64_t{1} << 29) << rows;
  }
}

}  // namespace
}  // namespace nsa::train
