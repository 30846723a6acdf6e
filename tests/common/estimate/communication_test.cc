#include "common/estimate/communication.h"

#include <gtest/gtest.h>

#include "common/job/load.h"

namespace nsa {
namespace {

TEST(Communication, GradientsHaveFourBytesAParameterOrTwo) {
  v1::JobSpec spec;
  ApplyDefaults(&spec);
  EXPECT_EQ(GradientBytes(spec), 4 * 81'591'588) << "326 MB";
  spec.mutable_runtime()->set_gradient_precision(v1::PRECISION_FP32);
  EXPECT_EQ(GradientBytes(spec), 4 * 81'591'588);
  spec.mutable_runtime()->set_gradient_precision(v1::PRECISION_BF16);
  EXPECT_EQ(GradientBytes(spec), 4 * 81'591'588) << "one rank sends none";
  spec.mutable_resources()->set_gpus(2);
  EXPECT_EQ(GradientBytes(spec), 2 * 81'591'588);
}

// Each of three passes has half a sum, and the new weights travel once: 2 of the 1 of a whole sum.
TEST(Communication, DividedGradientsTravelInEachPass) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_gpus(2);
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  spec.mutable_train()->set_accumulate_grad_batches(3);
  ApplyDefaults(&spec);
  const int64_t once = GradientBytes(spec);
  spec.mutable_runtime()->set_shard(v1::SHARD_GRADIENTS);
  EXPECT_EQ(GradientBytes(spec), 2 * once);
  spec.mutable_train()->set_accumulate_grad_batches(1);
  EXPECT_EQ(GradientBytes(spec), once);
}

// Each of three passes has half a sum of the gradients, and two gathers, each half a sum of the
// weights.
TEST(Communication, DividedWeightsTravelTwiceInEachPass) {
  v1::JobSpec spec;
  spec.mutable_resources()->set_gpus(2);
  spec.mutable_runtime()->set_device(v1::DEVICE_CPU);
  spec.mutable_train()->set_accumulate_grad_batches(3);
  ApplyDefaults(&spec);
  const int64_t once = GradientBytes(spec);
  spec.mutable_runtime()->set_shard(v1::SHARD_PARAMETERS);
  EXPECT_EQ(GradientBytes(spec), 3 * 3 * once / 2) << "weights of 4 bytes";
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  spec.mutable_runtime()->set_merge_micro_batches(1);
  EXPECT_EQ(GradientBytes(spec), 3 * once) << "of 2 bytes";
  spec.mutable_runtime()->set_gradient_precision(v1::PRECISION_BF16);
  EXPECT_EQ(GradientBytes(spec), 3 * 3 * once / 4);
}

TEST(Communication, ARingSendsNearlyTwiceTheGradients) {
  EXPECT_EQ(SumSeconds(1'000, 1, 1'000), 0);
  EXPECT_EQ(SumSeconds(1'000, 2, 1'000), 1);
  EXPECT_EQ(SumSeconds(1'000, 4, 1'000), 1.5);
  EXPECT_NEAR(SumSeconds(1'000, 1'000, 1'000), 2, 0.01);
}

// docs/two_gpus.md: two H100s, openstax_best.yaml of 2026-11-25, 65,536 tokens a step: 1,130,000
// tok/s directly, 480,000 over sockets of one host, which summed 157 MiB in 56 ms.
TEST(Communication, WhatWasMeasuredLiesBetweenTheTwoEstimates) {
  const double sockets = 157 * 1048576.0 / 0.056;
  const StepSeconds step = {.computing = 65'536 / 1'130'000.0,
                            .communicating = SumSeconds(4 * 77'600'000LL, 2, sockets)};
  const double measured = 65'536 / 480'000.0;
  EXPECT_GT(measured, step.Overlapped());
  EXPECT_LT(measured, step.OneAfterTheOther());
}

}  // namespace
}  // namespace nsa
