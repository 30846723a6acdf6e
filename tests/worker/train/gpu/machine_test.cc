#include "worker/train/gpu/machine.h"

#include "gtest/gtest.h"

namespace nsa::train {
namespace {

TEST(CoreTypeFor, AProcessorThatOpenBlasDoesNotKnowGetsTheKernelsOfOneThatItKnows) {
  EXPECT_EQ(CoreTypeFor("Prescott", /*has_avx512=*/true), "SkylakeX");
  EXPECT_EQ(CoreTypeFor("Prescott", /*has_avx512=*/false), "Haswell");
}

TEST(CoreTypeFor, AChoiceWithAvxStays) {
  for (const char* chosen : {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids"}) {
    EXPECT_EQ(CoreTypeFor(chosen, /*has_avx512=*/true), "") << chosen;
  }
}

}  // namespace
}  // namespace nsa::train
