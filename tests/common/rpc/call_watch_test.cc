#include "common/rpc/call_watch.h"

#include <string>

#include "common/base/clock.h"
#include "common/rpc/health.h"
#include "common/rpc/rpc.h"
#include "gtest/gtest.h"
#include "tests/testing/net/silent_server.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

// A coordinator that accepts connections and then says nothing. Calls have no deadline of gRPC's,
// as if its timers stood still.
class CallWatchTest : public ::testing::Test {
 protected:
  CallWatchTest() {
    channel_ = OpenChannel("unix:" + path_, {}).value();
    context_ = MakeContext(absl::InfiniteDuration(), "");
    context_->set_wait_for_ready(true);
  }

  TempDir folder_;
  const std::string path_ = folder_ / "socket";
  const SilentServer server_{path_};
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::ClientContext> context_;
  CallWatch watch_;
};

TEST_F(CallWatchTest, EndsACallThatHasNoAnswer) {
  const absl::Duration begin = RealClock().Monotonic();
  const CallWatch::Guard guard(&watch_, context_.get(), absl::Milliseconds(200));
  EXPECT_EQ(AskHealth(channel_.get(), context_.get()).error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(guard.overran());
  const absl::Duration took = RealClock().Monotonic() - begin;
  EXPECT_GE(took, absl::Milliseconds(1200)) << "a second is left to gRPC's own deadline";
  EXPECT_LT(took, absl::Seconds(30));
}

TEST_F(CallWatchTest, LeavesACallAloneThatHasTime) {
  context_ = MakeContext(absl::Milliseconds(100), "");
  context_->set_wait_for_ready(true);
  const CallWatch::Guard guard(&watch_, context_.get(), absl::Minutes(1));
  EXPECT_EQ(AskHealth(channel_.get(), context_.get()).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(guard.overran());
}

// One that was watched after another, and one whose time is without limit.
TEST_F(CallWatchTest, WatchesSeveralCallsAtOnce) {
  const auto other = MakeContext(absl::InfiniteDuration(), "");
  const CallWatch::Guard patient(&watch_, other.get(), absl::InfiniteDuration());
  const CallWatch::Guard guard(&watch_, context_.get(), absl::ZeroDuration());
  EXPECT_EQ(AskHealth(channel_.get(), context_.get()).error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(guard.overran());
  EXPECT_FALSE(patient.overran());
}

}  // namespace
}  // namespace nsa
