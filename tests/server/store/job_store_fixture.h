// A job store in the test's own folder.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/act/job_control.h"
#include "server/store/job_store.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {

class JobStoreFixture : public ::testing::Test {
 protected:
  JobStoreFixture() { Reopen(); }

  void Reopen() {
    store_.reset();
    auto opened = JobStore::Open(folder_.path(), clock_, {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  // Inserts a job that runs on one rank, in its first generation.
  std::string Insert(const std::string& name, const std::string& request_id = "",
                     const std::string& fingerprint = "f") {
    v1::StoredJob job;
    job.mutable_job()->set_id(NewJobId());
    job.mutable_job()->set_name(name);
    job.mutable_job()->set_state(v1::Job::STATE_RUNNING);
    job.mutable_job()->set_generation(1);
    *job.mutable_job()->mutable_spec() =
        TinyJob(name, absl::StrCat("/nowhere/", next_out_dir_++), 2);
    v1::JobEvent event;
    event.set_reason("SUBMITTED");
    const auto inserted = store_->Insert(job, request_id, fingerprint, event);
    EXPECT_TRUE(inserted.ok()) << inserted.status();
    return inserted.ok() ? inserted->job->job().id() : "";
  }

  absl::StatusOr<int64_t> Append(const std::string& id, int32_t rank, int64_t first, int64_t last,
                                 int64_t generation = 1) {
    v1::ReportRecordsRequest request;
    request.set_job_id(id);
    request.set_generation(generation);
    request.set_rank(rank);
    for (int64_t sequence = first; sequence <= last; ++sequence) {
      v1::WorkerRecord* record = request.add_records();
      record->set_sequence(sequence);
      record->mutable_step()->set_step(sequence);
      record->mutable_step()->set_loss(static_cast<double>(rank));
    }
    const auto appended = store_->AppendRecords(request);
    if (!appended.ok()) return appended.status();
    return appended->next_sequence;
  }

  std::vector<int64_t> Steps(const std::string& id, int32_t rank) {
    std::vector<int64_t> steps;
    const auto records = store_->Records(id, rank, 0, 10'000);
    EXPECT_TRUE(records.ok()) << records.status();
    for (const auto& record : *records) steps.push_back(record.record().step().step());
    return steps;
  }

  TempDir folder_;
  std::atomic<int> next_out_dir_ = 0;
  FakeClock clock_;
  std::unique_ptr<JobStore> store_;
};

}  // namespace nsa::server
