// A store, logs and stack dumps with jobs that have ended, and the retention that deletes them.
#pragma once

#include <atomic>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/act/job_control.h"
#include "server/act/retention.h"
#include "server/store/sqlite.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {

class RetentionFixture : public ::testing::Test {
 protected:
  RetentionFixture() { Restart(absl::ZeroDuration()); }

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

}  // namespace nsa::server
