// Tests the parts of GpuProgress that need no GPU. gpu_model_test.cc tests that marks show and time
// a step.
#include "worker/train/gpu/gpu_progress.h"

#include <gtest/gtest.h>

namespace nsa::train {
namespace {

// Preflight accepts up to 4096 micro-batches. Each has one mark for forward and one for backward;
// the reduction, the optimizer and the telemetry have one each.
TEST(GpuProgress, HasAPlaceForTheTimeOfEveryPhaseOfAStep) {
  for (const bool every_kernel : {false, true}) {
    for (const int32_t micro_batches : {1, 2, 238, 239, 4096}) {
      const int32_t step = 2 * micro_batches + 3;
      EXPECT_GE(GpuProgress::Stamps(micro_batches, every_kernel), 2 * step + 1)
          << micro_batches << " micro-batches: a graph, a step beside it, a validation";
    }
  }
  EXPECT_GE(GpuProgress::Stamps(1, true), 16384) << "for every kernel of a step of usual size";
}

TEST(GpuProgress, LooksWithoutAPauseWhereTheWaitBeforeEnded) {
  const absl::Duration before = absl::Milliseconds(20);
  EXPECT_FALSE(GpuProgress::NearEnd(absl::ZeroDuration(), before));
  EXPECT_FALSE(GpuProgress::NearEnd(absl::Milliseconds(19.3), before));
  EXPECT_TRUE(GpuProgress::NearEnd(absl::Milliseconds(19.5), before));
  EXPECT_TRUE(GpuProgress::NearEnd(absl::Milliseconds(20.5), before));
  EXPECT_FALSE(GpuProgress::NearEnd(absl::Milliseconds(20.7), before)) << "a stuck GPU";
  EXPECT_FALSE(GpuProgress::NearEnd(absl::Milliseconds(1), absl::ZeroDuration())) << "the first";
}

// A rank may have one core for everything. Of a long wait it takes a millisecond.
TEST(GpuProgress, LooksWithoutAPauseForAMillisecondOfALongWait) {
  const absl::Duration before = absl::Seconds(10);
  EXPECT_FALSE(GpuProgress::NearEnd(absl::Seconds(9.999), before));
  EXPECT_TRUE(GpuProgress::NearEnd(absl::Seconds(9.9996), before));
  EXPECT_TRUE(GpuProgress::NearEnd(absl::Seconds(10.0004), before));
  EXPECT_FALSE(GpuProgress::NearEnd(absl::Seconds(10.001), before));
}

}  // namespace
}  // namespace nsa::train
