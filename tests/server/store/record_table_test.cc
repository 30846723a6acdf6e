// Records and journals of ranks, as the store takes and gives them.
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using RecordTableTest = JobStoreFixture;

TEST_F(RecordTableTest, IgnoresRecordsThatItHasAndStopsAtAGap) {
  const std::string id = Insert("demo");
  EXPECT_EQ(*Append(id, 0, 1, 3), 4);
  EXPECT_EQ(*Append(id, 0, 2, 5), 6) << "2 and 3 are known";
  EXPECT_EQ(*Append(id, 0, 1, 5), 6) << "all are known";
  EXPECT_EQ(*Append(id, 0, 8, 9), 6) << "6 and 7 are missing";
  Reopen();
  EXPECT_EQ(*Append(id, 0, 4, 6), 7) << "after a restart too";
  EXPECT_EQ(*Append(id, 1, 1, 2), 3) << "each rank counts for itself";
  EXPECT_THAT(Steps(id, 0), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(Steps(id, 1), ElementsAre(1, 2));
}

TEST_F(RecordTableTest, RefusesRecordsOfRanksAndGenerationsThatNeverWere) {
  const std::string id = Insert("demo");
  EXPECT_THAT(Append(id, 2, 1, 1).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Append(id, -1, 1, 1).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Append(id, 0, 1, 1, 2).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Append("jnobody", 0, 1, 1).status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Steps(id, -1), IsEmpty());
}

TEST_F(RecordTableTest, LateRecordsOfAnOldGenerationAreKeptButMoveNothing) {
  const std::string id = Insert("demo");
  ASSERT_TRUE(Append(id, 0, 1, 5).ok());
  ASSERT_OK(store_
                ->Update(id,
                         [](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                           job->mutable_job()->set_generation(2);
                           return absl::OkStatus();
                         })
                .status());
  ASSERT_TRUE(Append(id, 0, 1, 2, 2).ok());
  ASSERT_TRUE(Append(id, 0, 6, 7, 1).ok());
  EXPECT_EQ((*store_->Find(id))->job().progress().step(), 2);
  EXPECT_EQ(Steps(id, 0).size(), 9u);
}

TEST_F(RecordTableTest, GivesRecordsByPositionAndTheLastFew) {
  const std::string id = Insert("demo");
  const std::string other = Insert("other");
  for (int i = 1; i <= 10; ++i) {
    ASSERT_TRUE(Append(id, 0, i, i).ok());
    ASSERT_TRUE(Append(other, 0, i, i).ok());
    ASSERT_TRUE(Append(id, 1, i, i).ok());
  }
  const auto first = store_->Records(id, -1, 0, 7);
  ASSERT_EQ(first->size(), 7u);
  const auto rest = store_->Records(id, -1, first->back().position(), 100);
  EXPECT_EQ(rest->size(), 13u);
  const auto tail = store_->TailPosition(id, 1, 3);
  const auto last = store_->Records(id, 1, *tail, 100);
  ASSERT_EQ(last->size(), 3u);
  EXPECT_EQ(last->front().record().step().step(), 8);
  EXPECT_EQ(store_->Records(id, 1, *store_->TailPosition(id, 1, 99), 100)->size(), 10u);
}

TEST_F(RecordTableTest, RemembersLastWordsAndTheFirstStepOverAReopen) {
  const std::string id = Insert("demo");
  v1::ReportRecordsRequest request;
  request.set_job_id(id);
  request.set_generation(1);
  v1::WorkerRecord* started = request.add_records();
  started->set_sequence(1);
  started->mutable_started()->set_resumed_step(40);
  v1::WorkerRecord* finished = request.add_records();
  finished->set_sequence(2);
  finished->set_unix_nanos(77);
  finished->mutable_finished()->set_reason("COMPLETED");
  ASSERT_OK(store_->AppendRecords(request).status());
  Reopen();
  const auto journal = store_->Journal(id, 1, 0);
  ASSERT_TRUE(journal.ok());
  EXPECT_EQ(journal->first_step, 40);
  EXPECT_EQ(journal->next_sequence, 3);
  ASSERT_TRUE(journal->finished.has_value());
  EXPECT_EQ(journal->finished->reason(), "COMPLETED");
  EXPECT_EQ(journal->finished_unix_nanos, 77);
}

TEST_F(RecordTableTest, RemembersOverAReopenWhatEventsHideAndHowLongCheckpointsTake) {
  const std::string id = Insert("demo");
  v1::ReportRecordsRequest request;
  request.set_job_id(id);
  request.set_generation(1);
  const auto add = [&] {
    v1::WorkerRecord* record = request.add_records();
    record->set_sequence(request.records_size());
    return record;
  };
  add()->mutable_event()->set_reason("CHECKPOINT_CORRUPT");
  add()->mutable_started()->set_resumed_step(40);
  add()->mutable_checkpoint()->set_write_seconds(9);
  add()->mutable_checkpoint()->set_write_seconds(150);
  request.mutable_records(3)->set_unix_nanos(5);
  for (int step = 41; step < 200; ++step) add()->mutable_step()->set_step(step);
  add()->mutable_finished()->set_reason("PEER_LOST");
  add()->mutable_event()->set_reason("TELEMETRY_RESTORED");
  const int64_t last = request.records_size();
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto check = [&](int64_t generation) {
    const auto journal = store_->Journal(id, generation, 0);
    ASSERT_OK(journal);
    EXPECT_EQ(journal->last_checkpoint_seconds, 150);
    if (generation == 2) return;
    EXPECT_EQ(journal->first_step, 40);
    EXPECT_EQ(journal->next_sequence, last + 1);
    ASSERT_TRUE(journal->finished.has_value());
    EXPECT_EQ(journal->finished->reason(), "PEER_LOST");
  };
  check(1);
  Reopen();
  check(1);
  const auto restart = [](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
    job->mutable_job()->set_generation(2);
    return absl::OkStatus();
  };
  ASSERT_OK(store_->Update(id, restart).status());
  Reopen();
  check(2);
}

}  // namespace
}  // namespace nsa::server
