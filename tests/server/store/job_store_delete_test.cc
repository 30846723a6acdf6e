// Deletes jobs and checks what is left of them.
#include <map>

#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobStoreDeleteTest : public JobStoreFixture {
 protected:
  // Ends the job as STOPPED, this long ago.
  void End(const std::string& id, absl::Duration ago) {
    EXPECT_OK(store_
                  ->Update(id,
                           [&](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                             job->mutable_job()->set_state(v1::Job::STATE_STOPPED);
                             job->mutable_job()->set_end_unix_nanos(
                                 absl::ToUnixNanos(clock_.Wall() - ago));
                             return absl::OkStatus();
                           })
                  .status());
  }

  void PurgeAll(const std::string& id, int rows) {
    while (true) {
      const auto empty = store_->Purge(id, rows);
      ASSERT_OK(empty.status());
      if (*empty) break;
    }
    ASSERT_OK(store_->Forget(id));
  }
};

TEST_F(JobStoreDeleteTest, ADeletedJobIsFoundNoMoreAndItsNameIsFree) {
  const std::string older = Insert("demo"), id = Insert("demo"), other = Insert("other");
  ASSERT_EQ(*Append(id, 0, 1, 5), 6);
  End(older, absl::Hours(3));
  End(id, absl::Hours(2));
  EXPECT_THAT(store_->Delete("demo", DeletedBy::kUser, "").status(),
              StatusIs(absl::StatusCode::kInvalidArgument))
      << "the name can mean both";
  const auto deleted = store_->Delete(id, DeletedBy::kUser, "");
  ASSERT_OK(deleted.status());
  EXPECT_EQ(deleted->job_id, id);
  EXPECT_EQ(deleted->job->job().progress().step(), 5) << "as it was";
  for (int life = 0; life < 2; ++life) {
    EXPECT_THAT(store_->Find(id).status(), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_EQ((*store_->Find("demo"))->job().id(), older) << "the name means the next older one";
    EXPECT_EQ(store_->List(0, "", {})->jobs.size(), 2u);
    EXPECT_EQ(store_->CountByState()[v1::Job::STATE_STOPPED], 1);
    EXPECT_THAT(store_->Records(id, 0, 0, 10).status(), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(Append(id, 0, 6, 6).status(), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(store_->Delete(id, DeletedBy::kUser, "").status(),
                StatusIs(absl::StatusCode::kNotFound));
    const auto events = store_->Events("", 0, 100);
    for (const v1::JobEvent& event : *events) EXPECT_NE(event.job_id(), id);
    EXPECT_EQ(store_->NextToPurge(), id) << "its rows are still there";
    Reopen();
  }
  ASSERT_OK(store_->Delete(older, DeletedBy::kUser, "").status());
  EXPECT_THAT(store_->Find("demo").status(), StatusIs(absl::StatusCode::kNotFound));
  const std::string next = Insert("demo");
  EXPECT_EQ((*store_->Find("demo"))->job().id(), next);
  EXPECT_EQ((*store_->Find("other"))->job().id(), other);
}

TEST_F(JobStoreDeleteTest, AJobThatHasNotEndedIsNotDeleted) {
  const std::string id = Insert("demo");
  EXPECT_THAT(store_->Delete("demo", DeletedBy::kUser, "r").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("is training"), HasSubstr("nsactl stop " + id))));
  EXPECT_EQ((*store_->Find(id))->job().state(), v1::Job::STATE_RUNNING);
  EXPECT_EQ(store_->NextToPurge(), "");
  End(id, absl::Hours(1));
  EXPECT_OK(store_->Delete("demo", DeletedBy::kUser, "r").status()) << "the id was not used up";
}

TEST_F(JobStoreDeleteTest, OneRequestIdDeletesOneJobAndIsAnsweredAlike) {
  const std::string id = Insert("demo", "submit"), twin = Insert("demo");
  End(id, absl::Hours(1));
  End(twin, absl::Hours(1));
  ASSERT_EQ(store_->Delete(twin, DeletedBy::kUser, "r")->job_id, twin);
  for (int life = 0; life < 2; ++life) {
    const auto again = store_->Delete(twin, DeletedBy::kUser, "r");
    ASSERT_OK(again.status());
    EXPECT_EQ(again->job_id, twin);
    EXPECT_TRUE(again->job == nullptr);
    EXPECT_OK(store_->Find(id).status()) << "the other job of that name";
    EXPECT_THAT(store_->Delete("other", DeletedBy::kUser, "r").status(),
                StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(twin)));
    EXPECT_THAT(store_->Delete("demo", DeletedBy::kUser, "submit").status(),
                StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(id)));
    EXPECT_THAT(store_->FindRequest("r", "f").status(),
                StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(twin)));
    Reopen();
  }
}

TEST_F(JobStoreDeleteTest, AJobThatHasChangedSinceItWasReadIsKept) {
  const std::string id = Insert("demo");
  End(id, absl::Hours(1));
  const JobPtr read = *store_->Find(id);
  End(id, absl::ZeroDuration());
  EXPECT_THAT(store_->Delete(id, DeletedBy::kRetention, "", "", read).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr(id)));
  const JobPtr now = *store_->Find(id);
  EXPECT_OK(store_->Delete(id, DeletedBy::kRetention, "", "", now).status());
  EXPECT_THAT(store_->Delete(id, DeletedBy::kRetention, "", "", now).status(),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(JobStoreDeleteTest, ARepeatedSubmitOfADeletedJobBringsNothingBack) {
  const std::string id = Insert("demo", "r1");
  v1::StoredJob twin = **store_->Find(id);
  twin.mutable_job()->set_id(NewJobId());
  End(id, absl::Hours(1));
  ASSERT_OK(store_->Delete(id, DeletedBy::kUser, "").status());
  PurgeAll(id, 100);
  Reopen();
  const auto gone =
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr(id), HasSubstr("has been deleted")));
  EXPECT_THAT(store_->FindRequest("r1", "f").status(), gone);
  EXPECT_THAT(store_->Insert(twin, "r1", "f", {}).status(), gone);
  EXPECT_TRUE(store_->List(0, "", {})->jobs.empty());
}

TEST_F(JobStoreDeleteTest, WhatADeletedJobLeftGoesAFewRowsAtATimeAlsoAfterAReopen) {
  const std::string kept = Insert("kept"), id = Insert("demo");
  for (const std::string& job : {kept, id}) {
    ASSERT_EQ(*Append(job, 0, 1, 30), 31);
    ASSERT_EQ(*Append(job, 1, 1, 30), 31);
  }
  End(id, absl::Hours(1));
  ASSERT_OK(store_->Delete(id, DeletedBy::kRetention, "").status());
  int transactions = 0;
  while (true) {
    const auto empty = store_->Purge(id, 7);
    ASSERT_OK(empty.status());
    if (*empty) break;
    ++transactions;
    Reopen();
    ASSERT_EQ(store_->NextToPurge(), id);
  }
  EXPECT_EQ(transactions, 91 / 7) << "60 records, an event and the 30 steps of the curve";
  ASSERT_OK(store_->Forget(id));
  EXPECT_EQ(store_->NextToPurge(), "");
  Reopen();
  EXPECT_EQ(store_->NextToPurge(), "");
  EXPECT_EQ(Steps(kept, 0).size(), 30u);
  EXPECT_EQ(Steps(kept, 1).size(), 30u);
  EXPECT_EQ(store_->Events("", 0, 100)->size(), 1u);
  store_.reset();
  auto database = Database::Open(folder_ / "jobs.sqlite");
  ASSERT_OK(database.status());
  for (const auto& [table, rows] : std::map<std::string, int64_t>{
           {"jobs", 1}, {"progress", 1}, {"events", 1}, {"records", 60}, {"requests", 0}}) {
    EXPECT_EQ(*(*database)->QueryInt("SELECT COUNT(*) FROM " + table), rows) << table;
  }
  EXPECT_EQ(*(*database)->QueryInt("PRAGMA user_version"), kSchemaVersion)
      << "the schema is what it was";
}

TEST_F(JobStoreDeleteTest, KnowsWhichJobsEndedLongAgo) {
  const std::string running = Insert("running"), old = Insert("old"), older = Insert("older"),
                    young = Insert("young");
  End(old, absl::Hours(50));
  End(older, absl::Hours(70));
  End(young, absl::Hours(5));
  const auto ids = [&](absl::Duration age, size_t limit) {
    std::vector<std::string> found;
    for (const JobPtr& job : store_->EndedBefore(clock_.Wall() - age, limit)) {
      found.push_back(job->job().id());
    }
    return found;
  };
  EXPECT_THAT(ids(absl::Hours(24), 10), ElementsAre(older, old));
  EXPECT_THAT(ids(absl::Hours(24), 1), ElementsAre(older));
  EXPECT_THAT(ids(absl::Hours(1), 10), ElementsAre(older, old, young));
  EXPECT_THAT(ids(absl::Hours(100), 10), IsEmpty());
}

}  // namespace
}  // namespace nsa::server
