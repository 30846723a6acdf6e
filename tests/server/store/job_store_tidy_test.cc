// The job store stays small: request ids are forgotten, the file shrinks, GPU time is kept.
#include <filesystem>

#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "server/decide/rule/gpu_time.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

class JobStoreTidyTest : public JobStoreFixture {
 protected:
  static constexpr absl::Duration kDay = absl::Hours(24);

  int64_t Query(const std::string& sql) {
    auto database = Database::Open(folder_ / "jobs.sqlite");
    EXPECT_OK(database.status());
    const auto value = (*database)->QueryInt(sql);
    EXPECT_OK(value.status());
    return value.value_or(-1);
  }
  void Execute(const std::string& sql) {
    auto database = Database::Open(folder_ / "jobs.sqlite");
    ASSERT_OK(database.status());
    ASSERT_OK((*database)->Execute(sql));
  }
  void TidyAll() {
    for (int i = 0; i < 100; ++i) {
      const auto done = store_->Tidy(clock_.Wall(), 500);
      ASSERT_OK(done.status());
      if (*done) return;
    }
    FAIL() << "it does not end";
  }
  // The bytes of the file itself; the log is folded into it first.
  int64_t FileBytes() {
    Execute("PRAGMA wal_checkpoint(TRUNCATE)");
    return static_cast<int64_t>(std::filesystem::file_size(folder_ / "jobs.sqlite"));
  }
  void DeleteWithAllRows(const std::string& id) {
    const auto end = [](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
      job->mutable_job()->set_state(v1::Job::STATE_SUCCEEDED);
      return absl::OkStatus();
    };
    ASSERT_OK(store_->Update(id, end).status());
    ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
    while (!*store_->Purge(id, 500)) {
    }
    ASSERT_OK(store_->Forget(id));
  }
};

TEST_F(JobStoreTidyTest, RequestIdsAreKnownForAMonthAndThenForgotten) {
  const std::string id = Insert("a", "request-1");
  clock_.Advance(RequestTable::kKept - kDay);
  Insert("b", "request-2");
  TidyAll();
  EXPECT_EQ((*store_->FindRequest("request-1", "f"))->job().id(), id);
  clock_.Advance(2 * kDay);
  TidyAll();
  EXPECT_EQ(*store_->FindRequest("request-1", "f"), nullptr);
  EXPECT_NE(*store_->FindRequest("request-2", "f"), nullptr);
}

TEST_F(JobStoreTidyTest, OfManyRequestIdsTheOldestGo) {
  Execute(
      "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200600) "
      "INSERT INTO requests SELECT 'r' || i, 'f', 'j', " +
      std::to_string(absl::ToUnixSeconds(clock_.Wall())) + " + i FROM n");
  TidyAll();
  EXPECT_EQ(Query("SELECT COUNT(*) FROM requests"), RequestTable::kMost);
  EXPECT_EQ(Query("SELECT COUNT(*) FROM requests WHERE id IN ('r1', 'r600')"), 0);
  EXPECT_EQ(Query("SELECT COUNT(*) FROM requests WHERE id IN ('r601', 'r200600')"), 2);
}

TEST_F(JobStoreTidyTest, AStoreOfAnEarlierVersionIsTakenOver) {
  const std::string id = Insert("a", "request-1");
  store_.reset();
  Execute(
      "DROP INDEX requests_by_time; ALTER TABLE requests DROP COLUMN unix_seconds; "
      "DROP TABLE gpu_time; PRAGMA auto_vacuum=NONE; VACUUM;");
  ASSERT_EQ(Query("PRAGMA auto_vacuum"), 0);
  Reopen();
  EXPECT_EQ(Query("PRAGMA auto_vacuum"), 2) << "it can shrink";
  TidyAll();
  EXPECT_EQ((*store_->FindRequest("request-1", "f"))->job().id(), id) << "it counts as of now";
  clock_.Advance(RequestTable::kKept + kDay);
  TidyAll();
  EXPECT_EQ(*store_->FindRequest("request-1", "f"), nullptr);
}

TEST_F(JobStoreTidyTest, TheFileShrinksInSmallStepsAndKeepsWhatIsThere) {
  const std::string kept = Insert("kept");
  ASSERT_OK(Append(kept, 0, 1, 100).status());
  std::vector<std::string> gone;
  for (int i = 0; i < 60; ++i) {
    gone.push_back(Insert("gone-" + std::to_string(i)));
    ASSERT_OK(Append(gone.back(), 0, 1, 2'000).status());
  }
  const std::string newest = Insert("newest");
  ASSERT_OK(Append(newest, 0, 1, 100).status());
  const int64_t before = FileBytes();
  ASSERT_GT(before, 8 << 20);
  for (const std::string& id : gone) DeleteWithAllRows(id);
  EXPECT_EQ(FileBytes(), before) << "SQLite gives nothing back by itself";
  int steps = 0;
  for (; !*store_->Shrink(256); ++steps) ASSERT_LT(steps, 10'000);
  EXPECT_GT(steps, 3);
  EXPECT_LT(FileBytes(), before / 2);
  EXPECT_EQ(Steps(kept, 0).size(), 100u);
  EXPECT_EQ(Steps(newest, 0).size(), 100u);
  const auto size = store_->SizeNow();
  ASSERT_OK(size.status());
  EXPECT_EQ(size->bytes, FileBytes());
  EXPECT_LT(size->free_bytes, 5 << 20);
  EXPECT_GT(size->disk_bytes, size->disk_free_bytes);
  EXPECT_GT(size->disk_free_bytes, 0);
  Reopen();
  EXPECT_EQ(Steps(newest, 0).size(), 100u);
}

TEST_F(JobStoreTidyTest, GpuTimeOutlivesTheJobAndTheProcess) {
  const std::string id = Insert("a");
  const auto change = [&](auto edit) {
    ASSERT_OK(store_
                  ->Update(id,
                           [&](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                             edit(job);
                             return absl::OkStatus();
                           })
                  .status());
  };
  change([](v1::StoredJob* job) {
    job->mutable_job()->set_owner("ada");
    job->add_placements()->set_cuda_device("GPU-0");
    job->add_placements()->set_cuda_device("GPU-1");
  });
  EXPECT_TRUE(store_->GpuHoursOf("ada").empty());
  change([](v1::StoredJob* job) { job->set_run_seconds(1'800); });
  const auto hours = [&] {
    return GpuTimeIn(store_->GpuHoursOf("ada"), absl::Hours(24), clock_.Wall());
  };
  EXPECT_EQ(hours(), absl::Hours(1));
  change([](v1::StoredJob* job) {
    job->set_run_seconds(3'600);
    job->clear_placements();
  });
  EXPECT_EQ(hours(), absl::Hours(2));
  DeleteWithAllRows(id);
  Reopen();
  EXPECT_EQ(hours(), absl::Hours(2));
  EXPECT_THAT(store_->GpuOwners(), ::testing::ElementsAre("ada"));
  clock_.Advance(kLongestGpuWindow + kDay);
  TidyAll();
  EXPECT_THAT(store_->GpuOwners(), ::testing::IsEmpty());
  EXPECT_EQ(Query("SELECT COUNT(*) FROM gpu_time"), 0);
}

}  // namespace
}  // namespace nsa::server
