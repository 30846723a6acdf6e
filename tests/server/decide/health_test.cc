#include "server/decide/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

v1::Job RunningJob() {
  v1::Job job;
  job.set_state(v1::Job::STATE_RUNNING);
  job.mutable_progress()->set_step(620);
  job.mutable_progress()->set_total_steps(1'000);
  job.mutable_progress()->set_eta_seconds(720);
  v1::RankStatus& rank = *job.add_ranks();
  rank.set_state("RUNNING");
  rank.set_phase("forward");
  return job;
}

TEST(Health, AJobThatTrainsSaysHowFarAndHowLong) {
  const Health health = HealthOf(RunningJob(), 0);
  EXPECT_EQ(health.level, HealthLevel::kGood);
  EXPECT_EQ(health.words, "training, 62 %, ends in 12 min; healthy");
  EXPECT_EQ(health.state, "training, 62 %, ends in 12 min");
  EXPECT_EQ(health.why, "");
}

TEST(Health, AStalledRankIsNamedWithItsPlace) {
  v1::Job job = RunningJob();
  v1::RankStatus& rank = *job.add_ranks();
  rank.set_rank(1);
  rank.set_state("RUNNING");
  rank.set_phase("all_reduce");
  rank.set_note("no progress for 240 s");
  const Health health = HealthOf(job, 0);
  EXPECT_EQ(health.level, HealthLevel::kWarning);
  EXPECT_EQ(health.words, "training, 62 %; rank 1: no progress for 240 s in all_reduce");
}

TEST(Health, ACheckpointThatFailedIsAWarningAndALossThatIsNotFiniteIsBad) {
  v1::Job job = RunningJob();
  job.mutable_progress()->set_checkpoint_error("disk full");
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kWarning);
  EXPECT_THAT(HealthOf(job, 0).words, HasSubstr("the last checkpoint failed: disk full"));
  job = RunningJob();
  job.mutable_progress()->set_loss(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(HealthOf(job, 0).words, HasSubstr("its loss is not finite"));
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kBad);
}

TEST(Health, WhatTheRecordsSayAboutARunIsPartOfItsSentence) {
  v1::Job job = RunningJob();
  job.mutable_health()->set_level(v1::JobHealth::LEVEL_WARNING);
  job.mutable_health()->set_words("the loss has not improved for 1,200 steps");
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kWarning);
  EXPECT_THAT(HealthOf(job, 0).words, HasSubstr("not improved for 1,200 steps"));
  job.mutable_health()->set_level(v1::JobHealth::LEVEL_BAD);
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kBad);
}

TEST(Health, WhatIsWrongStandsAloneToo) {
  v1::Job job = RunningJob();
  job.mutable_health()->set_level(v1::JobHealth::LEVEL_BAD);
  job.mutable_health()->set_words("the run has diverged: loss 8.07 (a uniform guess has 5.55)");
  EXPECT_EQ(HealthOf(job, 0).why, "the run has diverged: loss 8.07 (a uniform guess has 5.55)");
  EXPECT_EQ(HealthOf(job, 0).state, "training, 62 %, ends in 12 min");
  job.set_state(v1::Job::STATE_FAILED);
  job.set_message("rank 0 was killed by signal 9");
  EXPECT_EQ(HealthOf(job, 0).why, "rank 0 was killed by signal 9");
  EXPECT_EQ(HealthOf(job, 0).state, "failed at step 620 of 1000");
  EXPECT_EQ(HealthOf(job, 0).words, "failed at step 620 of 1000: rank 0 was killed by signal 9");
  job.set_message("rank 0 was killed by signal 9 at step 620");
  EXPECT_EQ(HealthOf(job, 0).words, "failed: rank 0 was killed by signal 9 at step 620");
  EXPECT_EQ(HealthOf(job, 0).state, "failed at step 620 of 1000");
}

TEST(Health, ANoteLeavesARunGood) {
  v1::Job job = RunningJob();
  job.mutable_health()->set_level(v1::JobHealth::LEVEL_HEALTHY);
  job.mutable_health()->set_words("the loss has not improved for 1,200 steps");
  job.mutable_health()->add_problems("PLATEAU");
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kGood);
  EXPECT_EQ(HealthOf(job, 0).why, "the loss has not improved for 1,200 steps");
}

TEST(Health, ARunThatHasDivergedDoesNotEndWell) {
  v1::Job job = RunningJob();
  job.set_state(v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kGood);
  job.set_reason("DIVERGED");
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kWarning);
  EXPECT_EQ(HealthOf(job, 0).words, "finished all 1000 steps, but the run has diverged");
  job.set_reason("COMPLETED");
  job.mutable_health()->set_level(v1::JobHealth::LEVEL_WARNING);
  job.mutable_health()->set_words("the run had diverged, from step 11 to 160");
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kWarning);
  EXPECT_EQ(HealthOf(job, 0).why, "the run had diverged, from step 11 to 160");
}

TEST(Health, AJobOfAHalvedSweepWaitsOrIsDropped) {
  v1::Job job = RunningJob();
  job.set_state(v1::Job::STATE_STOPPED);
  job.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  job.mutable_stop()->set_at_step(100);
  EXPECT_EQ(HealthOf(job, 0).words, "stopped at step 620 of 1000");
  job.mutable_spec()->mutable_sweep()->add_halve_at(100);
  EXPECT_EQ(HealthOf(job, 0).words, "waits at step 100 for the other jobs of its sweep");
  job.set_reason("SWEEP_DROPPED");
  job.set_message("rank 6 of 8 by validation loss");
  EXPECT_EQ(HealthOf(job, 0).words, "dropped at step 620 of 1000: rank 6 of 8 by validation loss");
  job.set_message("rank 6 of 8 by validation loss (2.1000 at step 620)");
  EXPECT_EQ(HealthOf(job, 0).words, "dropped: rank 6 of 8 by validation loss (2.1000 at step 620)");
}

TEST(Health, AQueuedJobSaysWhyItWaits) {
  v1::Job job;
  job.set_state(v1::Job::STATE_QUEUED);
  job.set_queue_position(2);
  job.set_message("needs 2 GPUs, 1 is free");
  const Health health = HealthOf(job, 0);
  EXPECT_EQ(health.level, HealthLevel::kWaiting);
  EXPECT_EQ(health.words, "waiting at position 2: needs 2 GPUs, 1 is free");
}

TEST(Health, ARestartSaysItsCauseAndWhenItStarts) {
  v1::Job job = RunningJob();
  job.set_state(v1::Job::STATE_RESTARTING);
  job.set_message("rank 0 was killed by signal 9");
  job.set_next_start_unix_nanos(114 * kSecond);
  EXPECT_EQ(HealthOf(job, 100 * kSecond).words,
            "restarting: rank 0 was killed by signal 9; next start in 14 s");
}

TEST(Health, AMoveIsNoFault) {
  v1::Job job = RunningJob();
  job.set_state(v1::Job::STATE_RESTARTING);
  job.set_reason("MOVING");
  job.set_message("a is drained by alice");
  EXPECT_EQ(HealthOf(job, 0).words, "moving to other machines: a is drained by alice");
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kWaiting);
}

TEST(Health, GivingWayIsNoFault) {
  v1::Job job = RunningJob();
  job.set_state(v1::Job::STATE_RESTARTING);
  job.set_reason("GIVING_WAY");
  job.set_message("gives way to job urgent");
  EXPECT_EQ(HealthOf(job, 0).words, "ending with a checkpoint: gives way to job urgent");
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kWaiting);
}

TEST(Health, EveryStateHasASentence) {
  for (int state = v1::Job::State_MIN; state <= v1::Job::State_MAX; ++state) {
    v1::Job job = RunningJob();
    job.set_state(static_cast<v1::Job::State>(state));
    EXPECT_NE(HealthOf(job, 0).words, "") << state;
  }
  v1::Job job = RunningJob();
  job.set_state(v1::Job::STATE_FAILED);
  EXPECT_EQ(HealthOf(job, 0).level, HealthLevel::kBad);
}

TEST(Health, SpansReachNoLimitOfTheirUnit) {
  EXPECT_EQ(Span(0), "0 s");
  EXPECT_EQ(Span(-3), "0 s");
  EXPECT_EQ(Span(59.4), "59 s");
  EXPECT_EQ(Span(59.6), "1 min");
  EXPECT_EQ(Span(3'599), "1 h 0 min");
  EXPECT_EQ(Span(12'000), "3 h 20 min");
  EXPECT_EQ(Span(187'200), "2 d 4 h");
}

}  // namespace
}  // namespace nsa::server
