// runtime.gradient_precision: bf16 on the CPU.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/estimate/shares.h"
#include "tests/worker/train/step/ranks/shares_jobs.h"

namespace nsa::train {
namespace {

constexpr int64_t kBf16Steps = 12;  // of Job()

v1::JobSpec JobFor(const TempDir& dir, const std::string& out, v1::Precision precision,
                   v1::Shard shard = v1::SHARD_NONE) {
  v1::JobSpec spec = SharesJob(dir, out, v1::OPTIMIZER_ADAMW, shard);
  spec.mutable_runtime()->set_gradient_precision(precision);
  return spec;
}

TEST(Bf16Gradients, GiveTheSameBitsInEveryRunAndWithDividedStates) {
  const TempDir dir;
  for (const int world : {2, 3}) {
    const std::string number = std::to_string(world);
    const v1::JobSpec first = JobFor(dir, "first-" + number, v1::PRECISION_BF16);
    const auto bits = RunToTheEnd(first, world);
    for (const v1::Shard shard : {v1::SHARD_NONE, v1::SHARD_OPTIMIZER, v1::SHARD_GRADIENTS}) {
      const std::string name = absl::StrCat("again-", number, std::string(ShardName(shard)));
      const v1::JobSpec again = JobFor(dir, name, v1::PRECISION_BF16, shard);
      EXPECT_EQ(RunToTheEnd(again, world), bits) << name;
      EXPECT_TRUE(Load(again, kBf16Steps) == Load(first, kBf16Steps)) << name;
    }
  }
}

// The first step's sums differ from those of fp32 by the rounding only: bf16 keeps 8 bits, so that
// a value changes by at most 2⁻⁹ of itself; two roundings, of a rank's own and of the sum, give at
// most 2⁻⁸ of the norm where gradients of the ranks do not cancel out.
TEST(Bf16Gradients, DifferFromFp32ByTheirRounding) {
  const TempDir dir;
  const auto fp32 = RunToTheEnd(JobFor(dir, "fp32", v1::PRECISION_FP32), 2);
  const auto bf16 = RunToTheEnd(JobFor(dir, "bf16", v1::PRECISION_BF16), 2);
  EXPECT_EQ(fp32[0].loss, bf16[0].loss) << "before the first update";
  EXPECT_NE(fp32[0].norm, bf16[0].norm);
  EXPECT_NEAR(bf16[0].norm / fp32[0].norm, 1, std::ldexp(1, -8));
  double largest = 0;
  for (size_t step = 0; step < fp32.size(); ++step) {
    largest = std::max(largest, std::fabs(fp32[step].loss - bf16[step].loss) / fp32[step].loss);
  }
  EXPECT_GT(largest, 0);
  EXPECT_LT(largest, 1e-2);
  RecordProperty("largest_relative_difference_of_losses", std::to_string(largest));
}

TEST(Bf16Gradients, OfOneRankAreThoseOfFp32) {
  const TempDir dir;
  EXPECT_EQ(RunToTheEnd(JobFor(dir, "bf16", v1::PRECISION_BF16), 1),
            RunToTheEnd(JobFor(dir, "fp32", v1::PRECISION_FP32), 1));
}

}  // namespace
}  // namespace nsa::train
