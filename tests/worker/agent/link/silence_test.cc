#include "worker/agent/link/silence.h"

#include "gtest/gtest.h"

namespace nsa::agent {
namespace {

const SilenceLimits kLimits = {.patience = absl::Seconds(10), .fresh = 3};

// After so many seconds without an answer, as long on the present connection.
Silence After(int seconds) {
  return {.since_answer = absl::Seconds(seconds),
          .since_opened = absl::Seconds(seconds),
          .accepts = true};
}

TEST(Silence, AConnectionHasItsTime) {
  EXPECT_EQ(NextStep(After(9), kLimits), SilenceStep::kWait);
  EXPECT_EQ(NextStep(After(10), kLimits), SilenceStep::kReopen);
}

TEST(Silence, AFreshConnectionHasItsTimeToo) {
  Silence silence = After(15);
  silence.fresh = 1;
  silence.since_opened = absl::Seconds(5);
  EXPECT_EQ(NextStep(silence, kLimits), SilenceStep::kWait);
  silence.since_opened = absl::Seconds(10);
  EXPECT_EQ(NextStep(silence, kLimits), SilenceStep::kReopen);
}

TEST(Silence, AConnectionThatWasGoodUntilNowIsNotOldButSilentForAMoment) {
  Silence silence = After(1);
  silence.since_opened = absl::Hours(5);
  EXPECT_EQ(NextStep(silence, kLimits), SilenceStep::kWait);
}

TEST(Silence, WhenFreshConnectionsDoNotHelpTheAgentEnds) {
  Silence silence = After(40);
  silence.since_opened = absl::Seconds(10);
  silence.fresh = 3;
  EXPECT_EQ(NextStep(silence, kLimits), SilenceStep::kEnd);
  silence.since_opened = absl::Seconds(9);
  EXPECT_EQ(NextStep(silence, kLimits), SilenceStep::kWait) << "the last one has its time as well";
}

TEST(Silence, ACoordinatorThatIsDownNeedsPatienceOnly) {
  Silence silence = After(100'000);
  silence.accepts = false;
  EXPECT_EQ(NextStep(silence, kLimits), SilenceStep::kWait);
  silence.fresh = 3;
  EXPECT_EQ(NextStep(silence, kLimits), SilenceStep::kWait);
}

// The monotonic clock goes on while a machine sleeps or a process is stopped.
TEST(Silence, AMachineThatSleptOpensAFreshConnectionAndDoesNotEnd) {
  EXPECT_EQ(NextStep(After(100'000), kLimits), SilenceStep::kReopen);
}

// NODE_LOST comes after five minutes: an agent that cannot help itself has been started again by
// then.
TEST(Silence, TheAgentEndsInTimeForItsSuccessor) {
  const SilenceLimits limits;
  EXPECT_LE((limits.fresh + 1) * limits.patience, absl::Minutes(2));
}

}  // namespace
}  // namespace nsa::agent
