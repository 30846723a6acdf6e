#include "common/base/parse_duration.h"

#include <gtest/gtest.h>

namespace nsa {
namespace {

TEST(ParseDuration, TakesAbslsFormsAndDays) {
  EXPECT_EQ(ParseDuration("90s"), absl::Seconds(90));
  EXPECT_EQ(ParseDuration("1h30m"), absl::Minutes(90));
  EXPECT_EQ(ParseDuration("0"), absl::ZeroDuration());
  EXPECT_EQ(ParseDuration("2d"), absl::Hours(48));
  EXPECT_EQ(ParseDuration("1.5d"), absl::Hours(36));
}

TEST(ParseDuration, RefusesTheRest) {
  for (const char* text : {"", "5", "-5m", "inf", "d", "1h2d", "1d2h", "ten minutes", "5 m"}) {
    EXPECT_FALSE(ParseDuration(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace nsa
