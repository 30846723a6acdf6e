// The output head on a GPU against that on the CPU, with logits in pieces.
#include <gtest/gtest.h>

#include <memory>

#include "kernels/cuda/device.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/model/output_head_case.h"
#include "worker/train/gpu/gpu.h"

namespace nsa::train {
namespace {

TEST(OutputHeadOnGpu, PiecesOfTheRowsGiveTheResultsOfTheCpu) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  const auto gpu = Gpu::Open();
  ASSERT_OK(gpu);
  ASSERT_OK((*gpu)->TakeScratch(int64_t{1} << 20));
  HeadCase cpu({}), head((*gpu)->exec());
  for (const bool overwrite : {false, true}) {
    const HeadCase::Results want = cpu.Run(HeadCase::kRows, false, overwrite);
    for (const int64_t rows : {int64_t{5}, int64_t{16}, HeadCase::kRows}) {
      for (const bool loss_in_backward : {false, true}) {
        const HeadCase::Results got = head.Run(rows, loss_in_backward, overwrite);
        // Weights, h, logits and gradients are rounded to bf16 (unit roundoff 2^-9) in turn.
        EXPECT_NEAR(got.mean_loss, want.mean_loss, 0.005 * want.mean_loss) << rows;
        EXPECT_LE(Difference(got.row_loss, want.row_loss), 0.01) << rows;
        EXPECT_LE(Difference(got.dx, want.dx), 0.02) << rows;
        EXPECT_LE(Difference(got.gradients, want.gradients), 0.02) << rows;
      }
    }
  }
}

}  // namespace
}  // namespace nsa::train
