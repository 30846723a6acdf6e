#include "server/store/job_store.h"

#include <thread>

#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

using JobStoreTest = JobStoreFixture;

TEST_F(JobStoreTest, KeepsJobsEventsRecordsAndProgressOverAReopen) {
  const std::string id = Insert("demo");
  ASSERT_EQ(*Append(id, 0, 1, 5), 6);
  ASSERT_OK(store_
                ->Update(id,
                         [](v1::StoredJob* job, std::vector<v1::JobEvent>* events) {
                           job->mutable_job()->set_reason("BECAUSE");
                           events->emplace_back().set_reason("HAPPENED");
                           return absl::OkStatus();
                         })
                .status());
  Reopen();
  const auto job = store_->Find(id);
  ASSERT_TRUE(job.ok());
  EXPECT_EQ((*job)->job().reason(), "BECAUSE");
  EXPECT_EQ((*job)->job().progress().step(), 5);
  EXPECT_EQ(Steps(id, 0).size(), 5u);
  const auto events = store_->Events(id, 0, 10);
  ASSERT_EQ(events->size(), 2u);
  EXPECT_EQ((*events)[1].reason(), "HAPPENED");
  EXPECT_EQ((*events)[1].state(), v1::Job::STATE_RUNNING);
  EXPECT_LT((*events)[0].sequence(), (*events)[1].sequence());
}

TEST_F(JobStoreTest, KeepsForWhomAJobGivesWayOverAReopen) {
  const std::string id = Insert("low");
  ASSERT_OK(store_
                ->Update(id,
                         [](v1::StoredJob* job, std::vector<v1::JobEvent>* events) {
                           job->mutable_job()->set_state(v1::Job::STATE_RESTARTING);
                           job->mutable_job()->set_reason("GIVING_WAY");
                           job->set_preempted_by("jurgent");
                           events->emplace_back().set_reason("GIVING_WAY");
                           return absl::OkStatus();
                         })
                .status());
  Reopen();
  const auto job = store_->Find(id);
  ASSERT_TRUE(job.ok());
  EXPECT_EQ((*job)->preempted_by(), "jurgent");
  EXPECT_EQ((*job)->job().state(), v1::Job::STATE_RESTARTING);
  const auto active = store_->Active();
  ASSERT_EQ(active.size(), 1u) << "so that the reconciler goes on with it";
  EXPECT_EQ(active[0]->preempted_by(), "jurgent");
}

TEST_F(JobStoreTest, OneRequestIdGivesOneJob) {
  const std::string first = Insert("demo", "r1");
  EXPECT_EQ(Insert("demo", "r1"), first);
  Reopen();
  EXPECT_EQ(Insert("demo", "r1"), first);
  EXPECT_THAT(store_->FindRequest("r1", "another").status(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(first)));
  EXPECT_TRUE(*store_->FindRequest("r2", "f") == nullptr);
}

TEST_F(JobStoreTest, AThousandSubmitsOfOneRequestFromTwentyThreadsGiveOneJob) {
  std::vector<std::thread> threads;
  std::vector<std::string> ids(20);
  for (size_t t = 0; t < 20; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string id = Insert("demo", "the-request");
        if (i == 0) ids[t] = id;
        EXPECT_EQ(id, ids[t]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  EXPECT_EQ(store_->List(0, "", {})->jobs.size(), 1u);
}

TEST_F(JobStoreTest, AChangeThatFailsLeavesNothingBehind) {
  const std::string id = Insert("demo");
  const auto failed = store_->Update(id, [](v1::StoredJob* job, std::vector<v1::JobEvent>* events) {
    job->mutable_job()->set_reason("HALF");
    events->emplace_back().set_reason("HALF");
    return absl::AbortedError("no");
  });
  EXPECT_THAT(failed.status(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ((*store_->Find(id))->job().reason(), "");
  EXPECT_EQ(store_->Events(id, 0, 10)->size(), 1u);
}

TEST_F(JobStoreTest, AWorkersEventIsAJobEventOnceAndItsOtherRecordsAreNone) {
  const std::string id = Insert("demo");
  v1::ReportRecordsRequest request;
  request.set_job_id(id);
  request.set_generation(1);
  request.set_rank(1);
  v1::WorkerRecord* corrupt = request.add_records();
  corrupt->set_sequence(1);
  corrupt->mutable_event()->set_reason("CHECKPOINT_CORRUPT");
  v1::WorkerRecord* failed = request.add_records();
  failed->set_sequence(2);
  failed->mutable_checkpoint()->set_error("disk full");
  ASSERT_OK(store_->AppendRecords(request).status());
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto events = store_->Events(id, 0, 10);
  ASSERT_EQ(events->size(), 2u) << "the writer of a failed checkpoint says so in an event";
  EXPECT_EQ((*events)[1].reason(), "CHECKPOINT_CORRUPT");
  EXPECT_EQ((*events)[1].rank(), 1);
}

}  // namespace
}  // namespace nsa::server
