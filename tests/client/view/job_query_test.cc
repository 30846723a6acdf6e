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

}  // namespace
}  // namespace nsa::client
