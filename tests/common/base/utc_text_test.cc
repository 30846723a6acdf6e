#include "common/base/utc_text.h"

#include <cstdlib>
#include <ctime>

#include "gtest/gtest.h"

namespace nsa {
namespace {

TEST(UtcText, IsInUtcWhereverTheProgramRuns) {
  setenv("TZ", "Asia/Kolkata", 1);
  tzset();
  EXPECT_EQ(UtcText(1'800'000'000'123'456'789), "2027-01-15T08:00:00Z");
  unsetenv("TZ");
  tzset();
}

}  // namespace
}  // namespace nsa
