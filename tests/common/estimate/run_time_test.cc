#include "common/estimate/run_time.h"

#include <gtest/gtest.h>

namespace nsa {
namespace {

v1::Job StartedAt(int64_t seconds) {
  v1::Job job;
  job.set_start_unix_nanos(seconds * 1'000'000'000);
  return job;
}

TEST(RunTime, OfAnEarlierCoordinatorGoesFromTheFirstStartToNowOrTheEnd) {
  v1::Job job = StartedAt(1'000);
  EXPECT_DOUBLE_EQ(RunSeconds(job, absl::FromUnixSeconds(1'500)), 500);
  job.set_end_unix_nanos(1'200'000'000'000);
  EXPECT_DOUBLE_EQ(RunSeconds(job, absl::FromUnixSeconds(1'500)), 200);
}

TEST(RunTime, WhileItWasStoppedOrQueuedDoesNotCount) {
  v1::Job job = StartedAt(1'000);
  job.set_run_seconds(300);
  EXPECT_DOUBLE_EQ(RunSeconds(job, absl::FromUnixSeconds(9'000)), 300) << "queued again";
  job.mutable_progress()->set_productive_seconds(270);
  EXPECT_DOUBLE_EQ(Goodput(job, absl::FromUnixSeconds(9'000)), 0.9);
  job.set_running_since_unix_nanos(9'000'000'000'000);
  EXPECT_DOUBLE_EQ(RunSeconds(job, absl::FromUnixSeconds(9'100)), 400);
  EXPECT_DOUBLE_EQ(RunSeconds(job, absl::FromUnixSeconds(8'900)), 300) << "the clock was set back";
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
