#include "server/act/job_memory.h"

#include <gtest/gtest.h>

namespace nsa::server {
namespace {

// A job that waits for slots is not refused meanwhile.
TEST(JobMemory, RefusalsThatLieFarApartAreNoSeries) {
  JobMemory memory;
  v1::Job job;
  job.set_id("j");
  absl::Duration now = absl::Hours(1);
  const auto refuse = [&](absl::Duration delay) {
    memory.NoteFailure(job, {.refused = true}, delay, now);
    return memory.RefusalsOf(job);
  };
  refuse(absl::Minutes(5));
  now += absl::Hours(1) + absl::Minutes(5);
  EXPECT_EQ(refuse(absl::Hours(1)).count, 2);
  now += absl::Hours(2);
  Refusals refusals = refuse(absl::Minutes(5));
  EXPECT_EQ(refusals.count, 3);
  EXPECT_EQ(refusals.since, absl::Hours(1));
  now += absl::Hours(24);
  refusals = refuse(absl::Minutes(5));
  EXPECT_EQ(refusals.count, 1);
  EXPECT_EQ(refusals.since, now);
}

}  // namespace
}  // namespace nsa::server
