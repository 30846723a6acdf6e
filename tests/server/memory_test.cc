// What the coordinator keeps in memory: nothing of jobs that were deleted, little of those that
// have ended. docs/limits.md has the bound of each part.
#include <sqlite3.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/store/fleet.h"
#include "server/store/log_store.h"
#include "server/watch/metrics.h"
#include "tests/server/server_fixture.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/server/watch/records.h"
#include "tests/testing/heap.h"
#include "tests/testing/net/http_get.h"

namespace nsa::server {
namespace {

// What a part may keep of something that is gone: room for a few buffers of threads and tables that
// have doubled, and far less than the smallest thing that is kept of a job.
constexpr int64_t kNothing = 64;  // bytes each, of some hundreds

// The heap without SQLite's pages, which fill up with whatever was written last.
int64_t Heap() { return HeapInUse() - sqlite3_memory_used(); }

class MemoryOfJobsTest : public ServerTest {
 protected:
  static constexpr int kAtOnce = 10;
  // Of a round. Buffers of connections come and go in steps of 56 KiB, in one round of twelve 120
  // KB: of so many jobs that is 600 bytes each.
  static constexpr int kJobs = 200;

  MemoryOfJobsTest() {
    metrics_address_ = "127.0.0.1:0";
    Restart();
    KeepBeating(2 * kAtOnce, 20);
  }
  ~MemoryOfJobsTest() override { StopBeating(); }

  // Runs jobs to their end, looks at them on the page, and deletes them.
  void RunAndDelete(int jobs) {
    for (int done = 0; done < jobs; done += kAtOnce) {
      std::vector<std::string> ids;
      for (int i = 0; i < kAtOnce; ++i) ids.push_back(Submit(Spec(absl::StrCat("job-", i), 2)));
      for (const std::string& id : ids) ASSERT_EQ(StateName(Follow(id).state()), "SUCCEEDED");
      HttpGet(server_->metrics_address(), "/api/v1/fleet");
      for (const std::string& id : ids) Delete(id);
    }
  }

  void Delete(const std::string& id) {
    v1::DeleteJobRequest request;
    request.set_job(id);
    EXPECT_OK(Call<v1::DeleteJobResponse>(&v1::CoordinatorService::Stub::DeleteJob, people_.get(),
                                          request));
  }

  // The heap once what deleted jobs left is removed, which happens in the background: the least,
  // when nothing less has been seen for two seconds.
  static int64_t Settled() {
    int64_t least = Heap();
    const absl::Time end = absl::Now() + absl::Seconds(30);
    for (absl::Time quiet = absl::Now() + absl::Seconds(2); absl::Now() < std::min(quiet, end);) {
      absl::SleepFor(absl::Milliseconds(50));
      const int64_t now = Heap();
      if (now >= least) continue;
      least = now;
      quiet = absl::Now() + absl::Seconds(2);
    }
    return least;
  }

  // Bytes that a deleted job leaves.
  int64_t GrowthPerJob() {
    const int64_t before = Settled();
    RunAndDelete(kJobs);
    return (Settled() - before) / kJobs;
  }

  static constexpr int64_t kMostOfADeletedJob = 1'024;
};

TEST_F(MemoryOfJobsTest, DeletedJobsLeaveNothing) {
  RunAndDelete(2 * kAtOnce);  // warms up caches and threads
  const int64_t once = GrowthPerJob();
  if (once < kMostOfADeletedJob) return;
  EXPECT_LT(GrowthPerJob(), kMostOfADeletedJob) << "after " << once << " in the round before";
}

TEST_F(MemoryOfJobsTest, ALeakIsSeen) {
  RunAndDelete(2 * kAtOnce);
  const int64_t before = Settled();
  const std::vector<std::string> lost(kJobs, std::string(2 * kMostOfADeletedJob, 'x'));
  EXPECT_GT((Settled() - before) / kJobs, kMostOfADeletedJob) << lost.size();
}

class MemoryOfRecordsTest : public JobStoreFixture {};

TEST_F(MemoryOfRecordsTest, RecordsOfEndedJobsThatAreSentAgainLeaveNothing) {
  std::vector<std::string> ids;
  for (int i = 0; i < 200; ++i) {
    const std::string& id = ids.emplace_back(Insert("demo"));
    ASSERT_OK(Append(id, 0, 1, 3).status());
    ASSERT_OK(store_
                  ->Update(id,
                           [](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                             job->mutable_job()->set_state(v1::Job::STATE_STOPPED);
                             return absl::OkStatus();
                           })
                  .status());
  }
  ASSERT_OK(Append(ids[0], 0, 1, 3).status());
  const int64_t before = Heap();
  for (const std::string& id : ids) {
    for (const int32_t rank : {0, 1}) {
      ASSERT_OK(Append(id, rank, 1, rank == 0 ? 3 : 0).status());
      ASSERT_OK(store_->Journal(id, 1, rank).status());
    }
  }
  EXPECT_LT(Heap() - before, 200 * kNothing);
}

TEST_F(MemoryOfRecordsTest, AJobThatStartsAgainKeepsTheJournalsOfItsLastStart) {
  const std::string id = Insert("demo");
  const auto start = [&](int64_t generation) {
    ASSERT_OK(store_
                  ->Update(id,
                           [&](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                             job->mutable_job()->set_generation(generation);
                             return absl::OkStatus();
                           })
                  .status());
    for (const int32_t rank : {0, 1}) ASSERT_EQ(*Append(id, rank, 1, 1, generation), 2);
  };
  for (int64_t generation = 1; generation <= 50; ++generation) start(generation);
  const int64_t before = Heap();
  for (int64_t generation = 51; generation <= 500; ++generation) start(generation);
  EXPECT_LT(Heap() - before, 450 * kNothing);
  EXPECT_EQ(*Append(id, 0, 1, 2, 400), 3) << "a late record of an earlier start";
}

TEST(MemoryOfFleet, AJobThatStartsAgainLeavesNothingOfItsEarlierStarts) {
  FakeClock clock;
  Fleet fleet(clock, {});
  v1::HeartbeatRequest heartbeat;
  heartbeat.mutable_node()->set_name("a");
  v1::WorkerObservation* const worker = heartbeat.add_workers();
  worker->set_job_id("j1");
  worker->set_state(v1::WorkerObservation::STATE_RUNNING);
  v1::StoredJob job = JobThatRuns("j1", 1);
  const auto beat = [&](int64_t generation) {
    worker->set_generation(generation);
    job.mutable_job()->set_generation(generation);
    ASSERT_OK(fleet.Observe(heartbeat));
    fleet.Prune({std::make_shared<const v1::StoredJob>(job)});
  };
  beat(1);
  const int64_t before = Heap();
  for (int64_t generation = 2; generation <= 500; ++generation) beat(generation);
  EXPECT_LT(Heap() - before, 500 * kNothing);
  EXPECT_TRUE(fleet.Worker("a", "j1", 500, 0).has_value());
}

TEST(MemoryOfLogs, LogsOfEndedJobsAreFoundAgainOnDisk) {
  const TempDir folder;
  LogStore logs(folder / "logs", 8'000);
  const auto append = [&](int job, int64_t offset, const std::string& line) {
    return logs.Append(absl::StrCat("j", job), 1, 0, offset, line)->next_offset;
  };
  append(0, 0, "one\n");
  logs.Prune({});
  const int64_t before = Heap();
  for (int job = 0; job < 200; ++job) append(job, job == 0 ? 4 : 0, "one\n");
  logs.Prune({});
  EXPECT_LT(Heap() - before, 200 * kNothing);
  EXPECT_EQ(append(7, 4, "two\n"), 8);
  EXPECT_EQ(logs.Read("j7", 0, {}, true)->data, "one\ntwo\n");
}

TEST(MemoryOfMetrics, OnlyTheLastOfManyJobsThatEndHaveSeries) {
  FakeClock clock;
  Metrics metrics(clock);
  const auto end = [&](int number) {
    v1::StoredJob job = JobThatRuns(absl::StrCat("j", number), 1);
    metrics.ObserveRecords(job.job(), 0, {Step(1), Step(2), Checkpoint(2)});
    job.mutable_job()->set_state(v1::Job::STATE_SUCCEEDED);
    metrics.ObserveMove(v1::Job::STATE_RUNNING, job);
    clock.Advance(absl::Milliseconds(10));
    metrics.ObserveFleet({}, {}, {});
  };
  constexpr int kMost = Metrics::kMostEnded;
  for (int job = 0; job < kMost; ++job) end(job);
  EXPECT_THAT(metrics.Text(), ::testing::HasSubstr("nsa_job_step{job_id=\"j0\"} 2"));
  const int64_t before = Heap();
  for (int job = kMost; job < 2 * kMost; ++job) end(job);
  EXPECT_LT(Heap() - before, kMost * kNothing);
  EXPECT_THAT(metrics.Text(), ::testing::Not(::testing::HasSubstr("job_id=\"j0\"")));
  EXPECT_THAT(metrics.Text(),
              ::testing::HasSubstr(absl::StrCat("nsa_job_step{job_id=\"j", 2 * kMost - 1, "\"}")));
}

}  // namespace
}  // namespace nsa::server
