// Jobs are found, listed and kept apart.
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using JobTableTest = JobStoreFixture;

TEST_F(JobTableTest, FindsByIdAndTheNewestByName) {
  const std::string first = Insert("demo");
  const std::string second = Insert("demo");
  EXPECT_EQ((*store_->Find("demo"))->job().id(), second);
  EXPECT_EQ((*store_->Find(first))->job().id(), first);
  Reopen();
  EXPECT_EQ((*store_->Find("demo"))->job().id(), second);
  EXPECT_THAT(store_->Find("nobody").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'nobody'")));
}

TEST_F(JobTableTest, ANameMeansTheJobsWithWhichTheCallerCanDoWhatItWants) {
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

TEST_F(JobTableTest, ListsTheJobsThatHaveAllOfTheLabels) {
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

TEST_F(JobTableTest, ListsInPagesNewestFirst) {
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

TEST_F(JobTableTest, NoTwoActiveJobsShareAnOutDir) {
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

TEST_F(JobTableTest, NoActiveJobHasItsOutDirInOrAroundThatOfAnother) {
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

}  // namespace
}  // namespace nsa::server
