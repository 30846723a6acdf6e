// Which jobs of a sweep go on: the rule of decide/sweep/halving.h on stored jobs.
#include "server/decide/sweep/halving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Eight jobs, halved after steps 100, 200 and 400.
v1::StoredJob NewJob(int index) {
  v1::StoredJob stored;
  v1::Job& job = *stored.mutable_job();
  job.set_id(absl::StrCat("j", index));
  job.set_state(v1::Job::STATE_QUEUED);
  v1::SweepSpec& sweep = *job.mutable_spec()->mutable_sweep();
  sweep.set_jobs(8);
  sweep.set_index(index);
  for (const int64_t step : {100, 200, 400}) sweep.add_halve_at(step);
  job.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  job.mutable_stop()->set_at_step(100);
  return stored;
}

// The job stops at `step` as asked, with this validation loss.
void Pause(v1::StoredJob* stored, int64_t step, double loss) {
  v1::Job& job = *stored->mutable_job();
  job.set_state(v1::Job::STATE_STOPPED);
  job.set_reason("STOPPED_AT_STEP");
  job.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  job.mutable_stop()->set_at_step(step);
  job.mutable_progress()->set_step(step);
  job.mutable_progress()->set_val_step(step);
  job.mutable_progress()->set_val_loss(loss);
}

class SweepDecisionTest : public ::testing::Test {
 protected:
  SweepDecisionTest() {
    for (int i = 0; i < 8; ++i) jobs_.push_back(NewJob(i));
  }

  SweepDecision Decide() {
    std::vector<const v1::StoredJob*> jobs;
    for (const v1::StoredJob& job : jobs_) jobs.push_back(&job);
    return DecideSweep(jobs);
  }

  std::vector<std::string> Promoted() {
    std::vector<std::string> ids;
    for (const SweepPromotion& each : Decide().promotions) ids.push_back(each.job_id);
    return ids;
  }

  std::vector<std::string> Dropped() {
    std::vector<std::string> ids;
    for (const SweepDrop& each : Decide().drops) ids.push_back(each.job_id);
    return ids;
  }

  // What the reconciler does with a promotion and with a drop.
  void Promote(int index, int64_t next_stop) {
    v1::Job& job = *jobs_[index].mutable_job();
    job.set_state(v1::Job::STATE_QUEUED);
    job.clear_stop();
    if (next_stop == 0) return;
    job.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
    job.mutable_stop()->set_at_step(next_stop);
  }
  void Drop(int index) {
    jobs_[index].set_sweep_dropped(true);
    jobs_[index].mutable_job()->set_reason("SWEEP_DROPPED");
  }

  // All eight stop at step 100; the loss of job i is losses[i].
  void PauseAll(const std::vector<double>& losses) {
    for (size_t i = 0; i < losses.size(); ++i) Pause(&jobs_[i], 100, losses[i]);
  }

  std::vector<v1::StoredJob> jobs_;
};

const std::vector<double> kLosses = {2.8, 2.1, 2.7, 2.2, 2.6, 2.3, 2.5, 2.4};

TEST_F(SweepDecisionTest, NothingIsDecidedWhileAJobTrainsTowardsTheStep) {
  EXPECT_THAT(Promoted(), IsEmpty());
  PauseAll(kLosses);
  jobs_[6] = NewJob(6);
  jobs_[6].mutable_job()->set_state(v1::Job::STATE_RUNNING);
  EXPECT_THAT(Promoted(), IsEmpty());
  EXPECT_THAT(Dropped(), IsEmpty());
}

TEST_F(SweepDecisionTest, NothingIsDecidedBeforeTheLastJobIsSubmitted) {
  PauseAll(kLosses);
  jobs_.pop_back();
  EXPECT_THAT(Promoted(), IsEmpty());
}

TEST_F(SweepDecisionTest, TheBetterHalfGoesOnToTheNextStep) {
  PauseAll(kLosses);
  EXPECT_THAT(Promoted(), ElementsAre("j1", "j3", "j5", "j7"));
  EXPECT_THAT(Dropped(), ElementsAre("j6", "j4", "j2", "j0"));
  EXPECT_EQ(Decide().promotions[0].next_stop, 200);
  EXPECT_EQ(Decide().promotions[0].why,
            "rank 1 of 8 by validation loss (2.1000 at step 100): goes on to step 200");
  EXPECT_EQ(Decide().drops[3].why,
            "rank 8 of 8 by validation loss (2.8000 at step 100): the sweep goes on without it");
}

TEST_F(SweepDecisionTest, AfterTheLastStepOneJobRunsToItsEnd) {
  PauseAll(kLosses);
  for (const int i : {0, 2, 4, 6, 5, 7}) Drop(i);
  Pause(&jobs_[1], 400, 1.9);
  Pause(&jobs_[3], 400, 1.8);
  EXPECT_THAT(Promoted(), ElementsAre("j3"));
  EXPECT_EQ(Decide().promotions[0].next_stop, 0);
  EXPECT_THAT(Decide().promotions[0].why, HasSubstr("goes on to its last step"));
  EXPECT_THAT(Dropped(), ElementsAre("j1"));
}

// A coordinator that dies in the middle of a decision decides the rest as it would have.
TEST_F(SweepDecisionTest, ADecisionThatWasCarriedOutInPartIsCompleted) {
  for (int done = 0; done <= 8; ++done) {
    for (int i = 0; i < 8; ++i) jobs_[i] = NewJob(i);
    PauseAll(kLosses);
    const int order[] = {1, 3, 5, 7, 6, 4, 2, 0};
    for (int i = 0; i < done; ++i) i < 4 ? Promote(order[i], 200) : Drop(order[i]);
    std::vector<std::string> promoted = {"j1", "j3", "j5", "j7"};
    promoted.erase(promoted.begin(), promoted.begin() + std::min(done, 4));
    EXPECT_EQ(Promoted(), promoted) << done;
    EXPECT_EQ(Dropped().size(), static_cast<size_t>(std::min(4, 8 - done))) << done;
  }
}

TEST_F(SweepDecisionTest, AmongEqualLossesTheLowerIndexGoesOn) {
  PauseAll(std::vector<double>(8, 2.0));
  EXPECT_THAT(Promoted(), ElementsAre("j0", "j1", "j2", "j3"));
}

TEST_F(SweepDecisionTest, AJobWithoutAFiniteLossAtTheStepNeverGoesOn) {
  PauseAll(kLosses);
  for (const int i : {1, 3, 5, 6}) {
    jobs_[i].mutable_job()->mutable_progress()->set_val_loss(std::nan(""));
  }
  jobs_[7].mutable_job()->mutable_progress()->set_val_step(50);
  EXPECT_THAT(Promoted(), ElementsAre("j4", "j2", "j0"));
  EXPECT_THAT(Dropped(), ElementsAre("j1", "j3", "j5", "j6", "j7"));
  EXPECT_EQ(Decide().drops[0].why,
            "no finite validation loss at step 100: the sweep goes on without it");
}

TEST_F(SweepDecisionTest, AFailedJobAndOneThatAUserStoppedTakeNoPart) {
  PauseAll(kLosses);
  jobs_[1].mutable_job()->set_state(v1::Job::STATE_FAILED);
  jobs_[3].mutable_job()->set_reason("STOPPED_BY_USER");
  jobs_[3].mutable_job()->mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  EXPECT_THAT(Promoted(), ElementsAre("j5", "j7", "j6", "j4"));
  EXPECT_THAT(Dropped(), ElementsAre("j2", "j0"));
}

// A user, or its limit of hours, ends the job before the step; its checkpoint is still written.
TEST_F(SweepDecisionTest, AJobOnItsWayToAnEndTakesNoPlace) {
  PauseAll(kLosses);
  for (const int i : {0, 2, 4, 6, 5, 7}) Drop(i);
  Pause(&jobs_[1], 400, 1.9);
  Promote(3, 400);
  v1::Job& job = *jobs_[3].mutable_job();
  job.set_state(v1::Job::STATE_RUNNING);
  EXPECT_THAT(Promoted(), IsEmpty());
  job.set_state(v1::Job::STATE_STOPPING);
  EXPECT_THAT(Promoted(), IsEmpty()) << "as the sweep told it";
  job.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  job.mutable_progress()->set_step(300);
  EXPECT_THAT(Promoted(), ElementsAre("j1"));
  // It had reached the step when it was told.
  Pause(&jobs_[3], 400, 1.5);
  job.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  EXPECT_FALSE(IsPaused(jobs_[3]));
  EXPECT_THAT(Promoted(), ElementsAre("j1"));
}

TEST_F(SweepDecisionTest, AWinnerThatAUserStoppedAtAStepIsNotPaused) {
  Pause(&jobs_[1], 400, 1.9);
  EXPECT_TRUE(IsPaused(jobs_[1]));
  Pause(&jobs_[1], 700, 1.8);
  EXPECT_FALSE(IsPaused(jobs_[1]));
}

TEST_F(SweepDecisionTest, ADroppedJobThatAUserResumedTakesNobodysPlace) {
  PauseAll(kLosses);
  for (const int i : {0, 2, 4, 6}) Drop(i);
  Promote(0, 0);
  for (const int i : {1, 3, 5, 7}) Pause(&jobs_[i], 200, 2.0 + i);
  EXPECT_THAT(Promoted(), ElementsAre("j1", "j3"));
  EXPECT_THAT(Dropped(), ElementsAre("j5", "j7"));
}

TEST(SweepStopTest, ANewJobStopsAtTheFirstStep) {
  EXPECT_EQ(FirstSweepStop(NewJob(0).job().spec().sweep()), 100);
  EXPECT_EQ(FirstSweepStop(v1::SweepSpec()), 0);
}

}  // namespace
}  // namespace nsa::server
