#include "common/record/json_number.h"

#include <gtest/gtest.h>

#include <limits>

namespace nsa::record {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(JsonNumber, IsATextWhereJsonHasNoNumber) {
  EXPECT_EQ(JsonNumber(0.1).dump(), "0.1");
  EXPECT_EQ(JsonNumber(kNan).dump(), "\"NaN\"");
  EXPECT_EQ(JsonNumber(kInfinite).dump(), "\"Infinity\"");
  EXPECT_EQ(JsonNumber(-kInfinite).dump(), "\"-Infinity\"");
}

TEST(JsonOrNull, IsNullThere) {
  EXPECT_EQ(JsonOrNull(-2.5).dump(), "-2.5");
  for (const double value : {kNan, kInfinite, -kInfinite}) EXPECT_TRUE(JsonOrNull(value).is_null());
}

}  // namespace
}  // namespace nsa::record
