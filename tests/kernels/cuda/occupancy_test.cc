#include "kernels/cuda/occupancy.h"

#include "gtest/gtest.h"

namespace nsa::cuda {
namespace {

constexpr int kSharedOfH100Multiprocessor = 228 * 1024;

TEST(Occupancy, ADriversKibibyteDecidesWhetherAnotherThreadBlockFits) {
  EXPECT_EQ(BlocksIn(kSharedOfA100Multiprocessor, 54'954), 3);
  EXPECT_EQ(BlocksIn(kSharedOfA100Multiprocessor, 54'955), 2);
  EXPECT_EQ(BlocksIn(kSharedOfA100Multiprocessor, kSharedOfA100), 1);
}

TEST(Occupancy, PaddingLeavesAsManyThreadBlocksAsAreAskedForAndNoMore) {
  for (int blocks = 1; blocks <= 32; ++blocks) {
    const int least = LeastFor(blocks, kSharedOfH100Multiprocessor);
    EXPECT_EQ(BlocksIn(kSharedOfH100Multiprocessor, least), blocks);
    EXPECT_GT(BlocksIn(kSharedOfH100Multiprocessor, least - kSharedUnit), blocks);
  }
}

// The launch of such a kernel is accepted in sm_80 code, which may use as much as on an A100.
TEST(Occupancy, PaddingForOneThreadBlockIsWithinTheLimitOfAnA100) {
  EXPECT_LE(LeastFor(1, kSharedOfH100Multiprocessor), kSharedOfA100);
}

}  // namespace
}  // namespace nsa::cuda
