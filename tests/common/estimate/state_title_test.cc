#include "common/estimate/state_title.h"

#include <set>

#include "gtest/gtest.h"

namespace nsa {
namespace {

TEST(StateTitle, EachStateHasOneAndOnlyThoseThatWaitShareIt) {
  std::set<std::string> titles;
  for (int state = 1; state < v1::Job::State_ARRAYSIZE; ++state) {
    titles.insert(StateTitle(static_cast<v1::Job::State>(state)));
  }
  EXPECT_EQ(titles.size(), static_cast<size_t>(v1::Job::State_ARRAYSIZE) - 2);
  EXPECT_FALSE(titles.contains("unknown"));
  EXPECT_EQ(StateTitle(v1::Job::STATE_QUEUED), StateTitle(v1::Job::STATE_PREFLIGHT));
  EXPECT_EQ(StateTitle(static_cast<v1::Job::State>(99)), "unknown(99)");
}

TEST(StateTitle, AJobOfAHalvedSweepWaitsUntilItIsDropped) {
  v1::Job job;
  job.set_state(v1::Job::STATE_STOPPED);
  job.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  EXPECT_EQ(StateTitle(job), "stopped");
  job.mutable_spec()->mutable_sweep()->add_halve_at(100);
  EXPECT_TRUE(WaitsForSweep(job));
  EXPECT_EQ(StateTitle(job), "waiting");
  job.set_reason("SWEEP_DROPPED");
  EXPECT_FALSE(WaitsForSweep(job));
  EXPECT_EQ(StateTitle(job), "dropped");
}

TEST(StateTitle, AnEndNamesItsStepOnce) {
  v1::WorkerFinished end;
  end.set_reason("COMPLETED");
  end.set_step(40);
  EXPECT_EQ(EndText(end), "COMPLETED after step 40");
  end.set_outcome(v1::OUTCOME_COMPLETED);
  end.set_text("all 40 steps done");
  EXPECT_EQ(EndText(end), "COMPLETED: all 40 steps done");
  end.set_outcome(v1::OUTCOME_STOPPED);
  end.set_reason("STOPPED");
  end.set_text("stopped as asked after step 40");
  EXPECT_EQ(EndText(end), "STOPPED: stopped as asked after step 40");
  end.set_outcome(v1::OUTCOME_FAILED_FINAL);
  end.set_reason("DIVERGED");
  end.set_text("the run has diverged: loss 8.07 at step 40, at best 5 at step 4");
  EXPECT_EQ(EndText(end), "DIVERGED: " + end.text());
  end.set_text("the run has diverged: loss 8.07 at step 400, at best 5 at step 4");
  EXPECT_EQ(EndText(end), "DIVERGED after step 40: " + end.text());
}

}  // namespace
}  // namespace nsa
