#include "common/job/data/held_out.h"

#include <gtest/gtest.h>

namespace nsa {
namespace {

TEST(HeldOut, IsTheFractionOfTheTokensWithinItsFactor) {
  const HeldOutTokens share = HeldOutTokensOf(1'000'000, 0.03, 2048);
  EXPECT_EQ(share.sequence, 2049);
  EXPECT_EQ(share.wanted, 30'000);
  EXPECT_EQ(share.least, 20'000);
  EXPECT_EQ(share.most, 45'000);
  EXPECT_FALSE(share.more_than_asked());
}

TEST(HeldOut, IsAtLeastASequence) {
  const HeldOutTokens share = HeldOutTokensOf(100'000, 0.01, 2048);
  EXPECT_EQ(share.wanted, 2049);
  EXPECT_EQ(share.least, 2049);
  EXPECT_EQ(share.most, 3073);
  EXPECT_TRUE(share.more_than_asked());
  EXPECT_FALSE(HeldOutTokensOf(150'000, 0.01, 2048).more_than_asked()) << "1,500 and 2,049";
}

TEST(HeldOut, AShareThatWasNotAskedForIsNamed) {
  EXPECT_EQ(HeldOutShareText(1'500, 100'000, 0.01), "");
  EXPECT_EQ(HeldOutShareText(667, 100'000, 0.01), "");
  EXPECT_EQ(HeldOutShareText(2'049, 100'000, 0.01),
            "data.val_fraction: 0.01 (it holds out 2049 of 100000 tokens, 2 %); add data, change "
            "it, or name validation files in data.val_path");
  EXPECT_NE(HeldOutShareText(600, 100'000, 0.01), "");
}

}  // namespace
}  // namespace nsa
