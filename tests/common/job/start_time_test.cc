// JobSpec.not_before as text.
#include "common/job/start_time.h"

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

const absl::Time kSubmit = absl::FromUnixSeconds(1'800'000'000);  // 2027-01-15T08:00:00Z

TEST(StartTime, IsATimeWithItsOffset) {
  EXPECT_EQ(*StartTimeFor("2027-01-15T09:00:00Z", kSubmit), kSubmit + absl::Hours(1));
  EXPECT_EQ(*StartTimeFor("2027-01-15T09:00:00+01:00", kSubmit), kSubmit);
  EXPECT_EQ(*StartTimeFor("2026-01-01T00:00:00Z", kSubmit), absl::FromUnixSeconds(1'767'225'600))
      << "a time that is over holds nobody";
  EXPECT_FALSE(ParseStartTime("2027-01-15T09:00:00Z")->relative);
}

TEST(StartTime, IsCountedFromTheSubmitWithAPlus) {
  EXPECT_EQ(*StartTimeFor("+2h", kSubmit), kSubmit + absl::Hours(2));
  EXPECT_EQ(*StartTimeFor("+1h30m", kSubmit), kSubmit + absl::Minutes(90));
  EXPECT_EQ(*StartTimeFor("+1d", kSubmit), kSubmit + absl::Hours(24));
  EXPECT_TRUE(ParseStartTime("+2h")->relative);
}

TEST(StartTime, HasLimits) {
  EXPECT_OK(StartTimeFor("+366d", kSubmit).status());
  EXPECT_OK(StartTimeFor("2028-01-16T08:00:00Z", kSubmit).status());
  for (const char* text :
       {"+367d", "2028-01-16T08:00:01Z", "+", "+-2h", "2h", "tomorrow", "2027-01-15T09:00:00",
        "2027-01-15", "infinite-future", "infinite-past", "+inf", "1969-01-01T00:00:00Z"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(StartTimeFor(text, kSubmit).status())) << text;
  }
}

}  // namespace
}  // namespace nsa
