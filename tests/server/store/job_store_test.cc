#include "server/store/job_store.h"

#include <fcntl.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST_F(JobStoreTest, FindsByIdAndTheNewestByName) {
  const std::string first = Insert("demo");
  const std::string second = Insert("demo");
  EXPECT_EQ((*store_->Find("demo"))->job().id(), second);
  EXPECT_EQ((*store_->Find(first))->job().id(), first);
  Reopen();
  EXPECT_EQ((*store_->Find("demo"))->job().id(), second);
  EXPECT_THAT(store_->Find("nobody").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'nobody'")));
}

TEST_F(JobStoreTest, ANameMeansTheJobsWithWhichTheCallerCanDoWhatItWants) {
  const std::string trains = Insert("demo"), failed = Insert("demo"), done = Insert("demo");
  const auto end = [&](const std::string& id, v1::Job::State state) {
    const auto set = [state](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
      job->mutable_job()->set_state(state);
      return absl::OkStatus();
    };
    EXPECT_TRUE(store_->Update(id, set).ok());
  };
  const auto found = [&](v1::JobUse use) {
    const absl::StatusOr<JobPtr> job = store_->Find("demo", "", use);
    return job.ok() ? (*job)->job().id() : std::string(job.status().message());
  };
  const auto two = [&](const std::string& newer, const std::string& older) {
    return absl::StrCat("job: 'demo' can mean 2 jobs (at most 1): ", newer, ", ", older,
                        "; use the id of one");
  };
  end(failed, v1::Job::STATE_FAILED);
  end(done, v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(found(v1::JOB_USE_UNSPECIFIED), trains) << "not the newest, which has ended";
  EXPECT_EQ(found(v1::JOB_USE_ACTIVE), trains);
  EXPECT_EQ(found(v1::JOB_USE_EDIT), trains);
  EXPECT_EQ(found(v1::JOB_USE_RESUMABLE), failed);
  EXPECT_EQ(found(v1::JOB_USE_ENDED), two(done + " finished", failed + " failed"));
  EXPECT_EQ(store_->Namesakes("demo"), 2);
  EXPECT_EQ(store_->Namesakes(done), 0) << "an id means one job";

  const std::string queued = Insert("demo");
  EXPECT_EQ(found(v1::JOB_USE_UNSPECIFIED), queued) << "the newest of those to read about";
  EXPECT_EQ(found(v1::JOB_USE_ACTIVE), two(queued + " training", trains + " training"));
  const absl::Status refused = store_->Find("demo", "", v1::JOB_USE_ACTIVE).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(refused), Reason::kAmbiguousName);
  EXPECT_EQ((*store_->Find(trains, "", v1::JOB_USE_ACTIVE))->job().id(), trains);

  end(queued, v1::Job::STATE_SUCCEEDED);
  end(trains, v1::Job::STATE_SUCCEEDED);
  end(failed, v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(found(v1::JOB_USE_UNSPECIFIED), queued);
  EXPECT_EQ(found(v1::JOB_USE_ACTIVE), queued) << "the request will say that it has ended";
  EXPECT_THAT(found(v1::JOB_USE_EDIT), ::testing::HasSubstr("can mean 4 jobs"));
}

TEST_F(JobStoreTest, IgnoresRecordsThatItHasAndStopsAtAGap) {
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

TEST_F(JobStoreTest, RefusesRecordsOfRanksAndGenerationsThatNeverWere) {
  const std::string id = Insert("demo");
  EXPECT_THAT(Append(id, 2, 1, 1).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Append(id, -1, 1, 1).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Append(id, 0, 1, 1, 2).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Append("jnobody", 0, 1, 1).status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Steps(id, -1), IsEmpty());
}

TEST_F(JobStoreTest, LateRecordsOfAnOldGenerationAreKeptButMoveNothing) {
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

TEST_F(JobStoreTest, GivesRecordsByPositionAndTheLastFew) {
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

TEST_F(JobStoreTest, RemembersLastWordsAndTheFirstStepOverAReopen) {
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

TEST_F(JobStoreTest, RemembersOverAReopenWhatEventsHideAndHowLongCheckpointsTake) {
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

TEST_F(JobStoreTest, ListsTheJobsThatHaveAllOfTheLabels) {
  Insert("plain");
  for (const char* team : {"vision", "speech"}) {
    const auto set_labels = [&](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
      auto& labels = *job->mutable_job()->mutable_spec()->mutable_labels();
      labels["team"] = team;
      labels["run"] = "7";
      return absl::OkStatus();
    };
    ASSERT_OK(store_->Update(Insert(team), set_labels).status());
  }
  const auto names = [&](const std::map<std::string, std::string>& labels) {
    std::vector<std::string> listed;
    const auto page = store_->List(0, "", {.labels = labels});
    for (const JobPtr& job : page->jobs) listed.push_back(job->job().name());
    return listed;
  };
  EXPECT_THAT(names({{"run", "7"}}), ElementsAre("speech", "vision"));
  EXPECT_THAT(names({{"run", "7"}, {"team", "vision"}}), ElementsAre("vision"));
  EXPECT_THAT(names({{"team", "text"}}), IsEmpty());
  EXPECT_THAT(names({{"owner", ""}}), IsEmpty()) << "a label that is not there is not empty";
}

TEST_F(JobStoreTest, ListsInPagesNewestFirst) {
  std::vector<std::string> inserted;
  for (int i = 0; i < 25; ++i) inserted.push_back(Insert("j"));
  std::vector<std::string> listed;
  std::string token;
  int pages = 0;
  do {
    const auto page = store_->List(10, token, {});
    ASSERT_TRUE(page.ok());
    for (const JobPtr& job : page->jobs) listed.push_back(job->job().id());
    token = page->next_page_token;
    ++pages;
    if (pages == 1) Insert("new ones do not shift the pages");
  } while (!token.empty());
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(listed, std::vector<std::string>(inserted.rbegin(), inserted.rend()));
  EXPECT_EQ(store_->List(0, "", {})->jobs.size(), 26u);
  EXPECT_TRUE(store_->List(10, "", {.states = {v1::Job::STATE_FAILED}})->jobs.empty());
  EXPECT_THAT(store_->List(-1, "", {}).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store_->List(1, "x", {}).status(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(JobStoreTest, NoTwoActiveJobsShareAnOutDir) {
  const std::string first = Insert("first");
  v1::StoredJob second = **store_->Find(first);
  second.mutable_job()->set_id(NewJobId());
  const absl::Status refused = store_->Insert(second, "", "", {}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(first)));
  EXPECT_EQ(ReasonOf(refused), Reason::kOutDirInUse);
  const auto set_state = [&](const std::string& id, v1::Job::State state) {
    return store_
        ->Update(id,
                 [&](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                   job->mutable_job()->set_state(state);
                   return absl::OkStatus();
                 })
        .status();
  };
  ASSERT_OK(set_state(first, v1::Job::STATE_FAILED));
  EXPECT_OK(store_->Insert(second, "", "", {}).status());
  EXPECT_THAT(set_state(first, v1::Job::STATE_QUEUED),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(JobStoreTest, NoActiveJobHasItsOutDirInOrAroundThatOfAnother) {
  const auto insert = [&](const std::string& out_dir, const std::string& real = "") {
    v1::StoredJob job;
    job.mutable_job()->set_id(NewJobId());
    job.mutable_job()->set_state(v1::Job::STATE_QUEUED);
    job.mutable_job()->mutable_spec()->mutable_train()->set_out_dir(out_dir);
    job.set_out_dir_real(real);
    return store_->Insert(job, "", "", {}).status();
  };
  ASSERT_OK(insert("/data/runs/a"));
  for (const char* bad :
       {"/data/runs/a/checkpoints/step-00000005", "/data/runs", "/data", "/data/runs/a/x", "/"}) {
    const absl::Status refused = insert(bad, bad);
    EXPECT_EQ(ReasonOf(refused), Reason::kOutDirInUse) << bad;
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/data/runs/a")))
        << bad;
  }
  EXPECT_THAT(insert("/by/a/link/b", "/data/runs/a/b"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lies in /data/runs/a")));
  for (const char* good : {"/data/runs/b", "/data/runs/a-2", "/data/runs/aa", "/data/run"}) {
    EXPECT_OK(insert(good)) << good;
  }
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
