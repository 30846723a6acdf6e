#include "common/estimate/run_time.h"

#include <gtest/gtest.h>

namespace nsa {
namespace {

v1::Job StartedAt(int64_t seconds) {
  v1::Job job;
  job.set_start_unix_nanos(seconds * 1'000'000'000);
  return job;
}

TEST(RunTime, GoesFromTheFirstStartToNowOrTheEnd) {
  v1::Job job = StartedAt(1'000);
  EXPECT_DOUBLE_EQ(RunSeconds(job, absl::FromUnixSeconds(1'500)), 500);
  job.set_end_unix_nanos(1'200'000'000'000);
  EXPECT_DOUBLE_EQ(RunSeconds(job, absl::FromUnixSeconds(1'500)), 200);
}

TEST(RunTime, GoodputIsItsProductiveShare) {
  v1::Job job = StartedAt(1'000);
  job.mutable_progress()->set_productive_seconds(90);
  EXPECT_DOUBLE_EQ(Goodput(job, absl::FromUnixSeconds(1'100)), 0.9);
  EXPECT_DOUBLE_EQ(Goodput(job, absl::FromUnixSeconds(1'050)), 1) << "the worker's clock is ahead";
  EXPECT_DOUBLE_EQ(Goodput(job, absl::FromUnixSeconds(1'000)), 0);
}

TEST(RunTime, IsUnknownBeforeTheStart) {
  EXPECT_LT(RunSeconds(v1::Job(), absl::FromUnixSeconds(1)), 0);
  EXPECT_LT(Goodput(v1::Job(), absl::FromUnixSeconds(1)), 0);
}

}  // namespace
}  // namespace nsa
