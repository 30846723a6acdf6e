#include "server/rpc/self_probe.h"

#include <future>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/net/silent_server.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

TEST(SelfProbe, CallsForHelpOnceWhenNobodyAnswers) {
  std::promise<void> unreachable;
  int calls = 0;
  {
    SelfProbe probe({.address = "unix:/nonexistent/socket",
                     .every = absl::Milliseconds(5),
                     .patience = absl::Milliseconds(50),
                     .failures = 3,
                     .alive = [] { ADD_FAILURE(); },
                     .unreachable =
                         [&] {
                           ++calls;
                           unreachable.set_value();
                         }});
    EXPECT_EQ(unreachable.get_future().wait_for(std::chrono::seconds(10)),
              std::future_status::ready);
    absl::SleepFor(absl::Milliseconds(30));
  }
  EXPECT_EQ(calls, 1);
}

TEST(SelfProbe, ASilentServerIsAFaultUnlessTheProbeItselfDidNotRun) {
  const absl::Duration three = absl::Seconds(3);
  EXPECT_EQ(JudgeProbe({.answered = true, .took = three, .pulses = 1}), Probed::kAnswered);
  EXPECT_EQ(JudgeProbe({.took = three, .pulses = 30}), Probed::kSilent);
  EXPECT_EQ(JudgeProbe({.took = three, .pulses = 15}), Probed::kSilent);
  EXPECT_EQ(JudgeProbe({.took = three, .pulses = 14}), Probed::kStarved);
  EXPECT_EQ(JudgeProbe({.took = absl::Seconds(60), .pulses = 30}), Probed::kStarved)
      << "the machine slept or the process was stopped";
  EXPECT_EQ(JudgeProbe({.refused = true, .took = three, .pulses = 1}), Probed::kSilent)
      << "a refused connection is no matter of time";
}

TEST(SelfProbe, CallsForHelpWhenTheServerHangs) {
  const TempDir folder;
  const std::string path = folder / "socket";
  const SilentServer server(path);
  std::promise<void> unreachable;
  SelfProbe probe({.address = "unix:" + path,
                   .every = absl::Milliseconds(5),
                   .patience = absl::Milliseconds(300),
                   .failures = 2,
                   .alive = [] {},
                   .unreachable = [&] { unreachable.set_value(); }});
  EXPECT_EQ(unreachable.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace
}  // namespace nsa::server
