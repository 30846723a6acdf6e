// Numbers in messages.
#include "common/base/count.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nsa {
namespace {

TEST(Number, OfWholeNumbersHasAllDigits) {
  EXPECT_EQ(Number(0), "0");
  EXPECT_EQ(Number(4), "4");
  EXPECT_EQ(Number(-1000), "-1,000");
  EXPECT_EQ(Number(1e6), "1,000,000");
  EXPECT_EQ(Number(1e12), "1,000,000,000,000");
  EXPECT_EQ(Number(1'000'000'001), "1,000,000,001");
}

TEST(Number, OfOthersHasFewDigits) {
  EXPECT_EQ(Number(0.5), "0.5");
  EXPECT_EQ(Number(1e-10), "1e-10");
  EXPECT_EQ(Number(1.0 / 3), "0.3333333333");
  EXPECT_EQ(Number(1.0 / 3, 4), "0.3333");
  EXPECT_EQ(Number(12345.6, 4), "12,346");
  EXPECT_EQ(Number(9999.6, 6), "9999.6");
  EXPECT_EQ(Number(9999.7, 4), "10,000");
  EXPECT_EQ(Number(999999.7, 6), "1,000,000");
  EXPECT_EQ(Number(999999.4, 6), "999999");
}

TEST(Number, OfWhatIsNoCountIsPrintedToo) {
  EXPECT_EQ(Number(1e300), "1e+300");
  EXPECT_EQ(Number(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(Number(std::nan("")), "nan");
}

}  // namespace
}  // namespace nsa
