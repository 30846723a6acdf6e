#include "server/act/retention.h"

#include <fstream>
#include <future>

#include "absl/strings/str_cat.h"
#include "server/act/job_control.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class RetentionTest : public ::testing::Test {
 protected:
  RetentionTest() { Restart(absl::ZeroDuration()); }

  // Restarts the coordinator; it keeps jobs for this long.
  void Restart(absl::Duration keep) {
    retention_.reset();
    store_.reset();
    JobStore::Observer observer;
    observer.deleted = [this](const v1::StoredJob&, DeletedBy by) {
      ++(by == DeletedBy::kUser ? by_user_ : by_age_);
    };
    observer.failed = [this](const std::string& operation, const absl::Status&) {
      failed_.push_back(operation);
    };
    auto opened = JobStore::Open(folder_.path(), clock_, std::move(observer));
    ASSERT_OK(opened.status());
    store_ = *std::move(opened);
    retention_ = std::make_unique<Retention>(Retention::Parts{.store = *store_,
                                                              .logs = logs_,
                                                              .executor = executor_,
                                                              .clock = clock_,
                                                              .keep = keep,
                                                              .stacks = stacks_,
                                                              .draining = draining_});
  }

  // Inserts a job with an event, 1,200 records, a log and a stack dump that ended this long ago. A
  // negative time means that it still runs.
  std::string Insert(absl::Duration ended_ago) {
    v1::StoredJob stored;
    v1::Job& job = *stored.mutable_job();
    job.set_id(NewJobId());
    job.set_name("demo");
    job.set_generation(1);
    job.set_state(v1::Job::STATE_RUNNING);
    *job.mutable_spec() = TinyJob("demo", absl::StrCat("/nowhere/", ++jobs_));
    v1::JobEvent event;
    event.set_reason("SUBMITTED");
    EXPECT_OK(store_->Insert(stored, "", "", event).status());
    v1::ReportRecordsRequest records;
    records.set_job_id(job.id());
    records.set_generation(1);
    for (int64_t step = 1; step <= 1'200; ++step) {
      v1::WorkerRecord* record = records.add_records();
      record->set_sequence(step);
      record->mutable_step()->set_step(step);
    }
    EXPECT_OK(store_->AppendRecords(records).status());
    EXPECT_OK(logs_.Append(job.id(), 1, 0, 0, "a line\n").status());
    std::filesystem::create_directories(folder_ / "dumps");
    std::ofstream(folder_ / "dumps" / (job.id() + ".gen-000001.hang.txt")) << "stacks";
    if (ended_ago < absl::ZeroDuration()) return job.id();
    const auto end = [&](v1::StoredJob* ended, std::vector<v1::JobEvent>*) {
      ended->mutable_job()->set_state(v1::Job::STATE_SUCCEEDED);
      ended->mutable_job()->set_end_unix_nanos(absl::ToUnixNanos(clock_.Wall() - ended_ago));
      return absl::OkStatus();
    };
    EXPECT_OK(store_->Update(job.id(), end).status());
    return job.id();
  }

  // Time passes, with one tick per second.
  void Pass(absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      retention_->Tick();
      std::promise<void> done;
      executor_.Run([&done] { done.set_value(); });
      done.get_future().wait();
    }
  }

  std::vector<std::string> Jobs() {
    std::vector<std::string> ids;
    const auto page = store_->List(0, "", {});
    for (const JobPtr& job : page->jobs) ids.push_back(job->job().id());
    return ids;
  }
  static std::vector<std::string> Names(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      names.push_back(file.path().filename().string());
    }
    return names;
  }
  int64_t Rows(const std::string& table) {
    auto database = Database::Open(folder_ / "jobs.sqlite");
    EXPECT_OK(database.status());
    return *(*database)->QueryInt("SELECT COUNT(*) FROM " + table);
  }

  static constexpr absl::Duration kDay = absl::Hours(24);

  TempDir folder_;
  FakeClock clock_;
  LogStore logs_{folder_ / "logs", 1 << 20};
  StackStore stacks_{folder_ / "dumps", clock_};
  std::atomic<bool> draining_ = false;
  int jobs_ = 0;
  int by_user_ = 0;
  int by_age_ = 0;
  std::vector<std::string> failed_;  // operations of the store that failed
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<Retention> retention_;
  Executor executor_{"test", 1};
};

TEST_F(RetentionTest, KeepsEverythingUnlessItIsToldOtherwise) {
  const std::string id = Insert(10'000 * kDay);
  Pass(absl::Minutes(30));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(id));
}

TEST_F(RetentionTest, DeletesWhatEndedLongEnoughAgoAndNothingElse) {
  const std::string running = Insert(-kDay), young = Insert(29 * kDay), old = Insert(31 * kDay),
                    older = Insert(300 * kDay);
  Restart(30 * kDay);
  Pass(Retention::kSteady + absl::Minutes(2));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(running, young));
  EXPECT_EQ(by_age_, 2);
  EXPECT_EQ(by_user_, 0);
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_THAT(Names(folder_ / "logs"), UnorderedElementsAre(running, young));
  EXPECT_THAT(Names(folder_ / "dumps"), UnorderedElementsAre(running + ".gen-000001.hang.txt",
                                                             young + ".gen-000001.hang.txt"));
  EXPECT_EQ(Rows("jobs"), 2);
  EXPECT_EQ(Rows("events"), 2);
  EXPECT_EQ(Rows("records"), 2 * 1'200);
  clock_.Advance(kDay);
  Pass(Retention::kSteady + absl::Minutes(2));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(running));
}

TEST_F(RetentionTest, AClockThatIsSetIsNotBelievedAtOnce) {
  const std::string id = Insert(kDay);
  Restart(30 * kDay);
  Pass(Retention::kSteady + absl::Minutes(2));
  clock_.JumpWall(3'650 * kDay);
  Pass(Retention::kSteady - absl::Minutes(1));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(id));
  clock_.JumpWall(-3'650 * kDay);  // the wrong clock is set right
  Pass(absl::Hours(1));
  EXPECT_THAT(Jobs(), UnorderedElementsAre(id));
}

TEST_F(RetentionTest, RemovesAtOnceWhatDeletedJobsHaveLeft) {
  const std::string id = Insert(kDay), other = Insert(kDay);
  ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  Pass(absl::Seconds(1));
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_THAT(Jobs(), UnorderedElementsAre(other));
  EXPECT_THAT(Names(folder_ / "logs"), UnorderedElementsAre(other));
  EXPECT_EQ(Rows("records"), 1'200);
}

TEST_F(RetentionTest, LeavesTheRestToTheNextCoordinator) {
  const std::string id = Insert(kDay);
  ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  draining_ = true;
  Pass(absl::Seconds(1));
  EXPECT_EQ(store_->NextToPurge(), id);
  Restart(absl::ZeroDuration());
  draining_ = false;
  Pass(absl::Seconds(1));
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_EQ(Rows("records"), 0);
  EXPECT_THAT(Names(folder_ / "logs"), IsEmpty());
}

TEST_F(RetentionTest, WhatCannotBeRemovedHoldsUpNothingElseAndIsCounted) {
  const std::string one = Insert(kDay), other = Insert(kDay), old = Insert(31 * kDay);
  const std::string first = std::min(one, other), second = std::max(one, other);
  Restart(30 * kDay);
  const auto stubborn = folder_ / "dumps" / (first + ".folder");
  std::filesystem::create_directories(stubborn / "full");
  ASSERT_OK(store_->Delete(first, DeletedBy::kUser, "").status());
  ASSERT_OK(store_->Delete(second, DeletedBy::kUser, "").status());
  Pass(absl::Seconds(5));
  EXPECT_EQ(store_->NextToPurge(), first);
  EXPECT_EQ(store_->NextToPurge({first}), "");
  EXPECT_EQ(failed_, std::vector<std::string>{"delete"});
  Pass(Retention::kSteady + absl::Minutes(2));
  EXPECT_THAT(Jobs(), IsEmpty()) << "by age too";
  EXPECT_EQ(store_->NextToPurge(), first);
  EXPECT_GT(failed_.size(), 5u) << "tried again every minute";
}

TEST_F(RetentionTest, WhatCannotBeRemovedIsTriedAgain) {
  const std::string id = Insert(kDay);
  const auto stubborn = folder_ / "dumps" / (id + ".folder");
  std::filesystem::create_directories(stubborn / "full");
  ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  Pass(absl::Seconds(5));
  EXPECT_EQ(store_->NextToPurge(), id);
  std::filesystem::remove(stubborn / "full");
  Pass(absl::Seconds(5));
  EXPECT_EQ(store_->NextToPurge(), id) << "not every second";
  Pass(absl::Minutes(1));
  EXPECT_EQ(store_->NextToPurge(), "");
}

TEST_F(RetentionTest, TheFileShrinksAfterADeletion) {
  std::vector<std::string> ids;
  for (int i = 0; i < 120; ++i) ids.push_back(Insert(kDay));
  const int64_t before = store_->SizeNow()->bytes;
  ASSERT_GT(before, 6 << 20);
  for (const std::string& id : ids) ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  Pass(Retention::kSteady + absl::Minutes(2));
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_LT(store_->SizeNow()->bytes, before / 2);
  EXPECT_THAT(failed_, IsEmpty());
}

}  // namespace
}  // namespace nsa::server
