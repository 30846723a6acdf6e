#include "client/show/job_query.h"

#include <gtest/gtest.h>

#include <limits>

#include "client/show/job_text.h"
#include "tests/testing/fakes/fake_coordinator_service.h"

namespace nsa::client {
namespace {

TEST(JobQuery, LetsThroughWhatHasAllWords) {
  v1::Job job = DemoJob();  // training, at step 375 of 1000, loss about 2.1
  job.set_name("books-lr3");
  (*job.mutable_spec()->mutable_labels())["team"] = "vision";
  job.mutable_progress()->set_val_step(300);
  job.mutable_progress()->set_val_loss(1.625);
  for (const char* text : {"",
                           "  ",
                           "books",
                           "LR3",
                           "books lr3",
                           "state=training",
                           "state=RUNNING",
                           "state=tr",
                           "state!=failed",
                           "team=vision",
                           "team=vis",
                           "team!=lm",
                           "val<1.7",
                           "val>=1.625",
                           "val=1.625",
                           "val!=2",
                           "step>374",
                           "progress<=0.375",
                           "val<",
                           "team=",
                           "books val<1.7 team=vision"}) {
    EXPECT_TRUE(JobQuery(text).Holds(job, absl::UnixEpoch())) << text;
  }
  for (const char* text : {"plays", "books plays", "state=failed", "state!=training", "team=lm",
                           "team!=vision", "owner=me", "val<1.5", "val>1.7", "val<x"}) {
    EXPECT_FALSE(JobQuery(text).Holds(job, absl::UnixEpoch())) << text;
  }
}

TEST(JobQuery, AFigureThatIsMissingHoldsNothing) {
  v1::Job job = DemoJob();
  job.mutable_progress()->clear_val_step();
  EXPECT_FALSE(JobQuery("val<100").Holds(job, absl::UnixEpoch()));
  EXPECT_FALSE(JobQuery("val!=3").Holds(job, absl::UnixEpoch()));
  job.mutable_progress()->set_val_step(1);
  job.mutable_progress()->set_val_loss(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(JobQuery("val<100").Holds(job, absl::UnixEpoch()));
}

TEST(StateWord, IsThatOfThePage) {
  v1::Job job;
  const auto word = [&job](v1::Job::State state) {
    job.set_state(state);
    return StateWord(job);
  };
  EXPECT_EQ(word(v1::Job::STATE_QUEUED), "waiting");
  EXPECT_EQ(word(v1::Job::STATE_PREFLIGHT), "waiting");
  EXPECT_EQ(word(v1::Job::STATE_STARTING), "starting");
  EXPECT_EQ(word(v1::Job::STATE_RUNNING), "training");
  EXPECT_EQ(word(v1::Job::STATE_SUCCEEDED), "finished");
  EXPECT_EQ(word(v1::Job::STATE_STOPPED), "stopped");
  job.mutable_spec()->mutable_sweep()->add_halve_at(100);
  job.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  EXPECT_EQ(StateWord(job), "waiting") << "for the others of its sweep";
  job.set_reason("SWEEP_DROPPED");
  EXPECT_EQ(StateWord(job), "dropped");
}

}  // namespace
}  // namespace nsa::client
