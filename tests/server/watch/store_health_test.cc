#include "server/watch/store_health.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fakes/fake_clock.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StoreHealth, HasAProblemFromAFailureToTheNextCommit) {
  FakeClock clock;
  StoreHealth health(clock, "/var/lib/nsa");
  EXPECT_THAT(health.problem(), IsEmpty());
  health.Failed("append", absl::ResourceExhaustedError("database or disk is full"));
  clock.Advance(absl::Seconds(45));
  health.Failed("update", absl::ResourceExhaustedError("database or disk is full"));
  EXPECT_THAT(health.problem(),
              AllOf(HasSubstr("/var/lib/nsa has failed for 45 s, 2 times"),
                    HasSubstr("update: database or disk is full"), HasSubstr("NsaStoreFailing")));
  health.Committed();
  EXPECT_THAT(health.problem(), IsEmpty());
  health.Failed("append", absl::InternalError("disk I/O error"));
  EXPECT_THAT(health.problem(), HasSubstr("failed for 0 s, 1 time: append"));
}

}  // namespace
}  // namespace nsa::server
