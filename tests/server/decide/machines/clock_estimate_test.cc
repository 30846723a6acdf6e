#include "server/decide/machines/clock_estimate.h"

#include <limits>

#include "gtest/gtest.h"

namespace nsa::server {
namespace {

constexpr int64_t kNoon = 1'700'000'000'000'000'000;  // a machine's clock at monotonic 0

class ClockEstimateTest : public ::testing::Test {
 protected:
  // A heartbeat that was sent at this monotonic time and took `way`. `step`: of the machine's
  // clock.
  void Beat(double seconds, double way, double step = 0) {
    const absl::Duration sent = absl::Seconds(seconds);
    estimate_.Add(kNoon + absl::ToInt64Nanoseconds(sent + absl::Seconds(step)),
                  sent + absl::Seconds(way));
  }
  // The machine's clock minus kNoon at monotonic 0, in seconds.
  double Ahead() {
    return absl::ToDoubleSeconds(estimate_.AtZero().value() - absl::Nanoseconds(kNoon));
  }

  ClockEstimate estimate_;
};

TEST_F(ClockEstimateTest, IsNotKnownWithoutAHeartbeatThatTellsTheTime) {
  EXPECT_FALSE(estimate_.AtZero().has_value());
  estimate_.Add(0, absl::Seconds(1));
  estimate_.Add(-1, absl::Seconds(1));
  estimate_.Add(std::numeric_limits<int64_t>::min(), absl::Seconds(1));
  EXPECT_FALSE(estimate_.AtZero().has_value());
}

TEST_F(ClockEstimateTest, SlowHeartbeatsDoNotCount) {
  Beat(1, 0.4);
  EXPECT_NEAR(Ahead(), -0.4, 1e-6);
  Beat(2, 0.002);
  for (int i = 3; i < 10; ++i) Beat(i, 5);
  EXPECT_NEAR(Ahead(), -0.002, 1e-6);
}

TEST_F(ClockEstimateTest, AStepForwardIsSeenAtOnceAndAStepBackAfterSomeHeartbeats) {
  Beat(1, 0.001);
  Beat(2, 0.001, 3);
  EXPECT_NEAR(Ahead(), 2.999, 1e-6);
  for (size_t i = 0; i < ClockEstimate::kKept; ++i) {
    EXPECT_NEAR(Ahead(), 2.999, 1e-6) << i;
    Beat(3 + static_cast<double>(i), 0.001, -2);
  }
  EXPECT_NEAR(Ahead(), -2.001, 1e-6);
}

TEST_F(ClockEstimateTest, AnyTimeThatAMachineTellsIsANumber) {
  estimate_.Add(std::numeric_limits<int64_t>::max(), absl::ZeroDuration());
  EXPECT_EQ(estimate_.AtZero(), absl::Nanoseconds(std::numeric_limits<int64_t>::max()));
}

}  // namespace
}  // namespace nsa::server
