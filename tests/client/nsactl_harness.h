// nsactl in the test's own process, against a fake coordinator, at noon of 2026-11-20.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli.h"
#include "gtest/gtest.h"
#include "tests/testing/fakes/fake_coordinator_service.h"
#include "tests/testing/temp_dir.h"

namespace nsa::client {

// The wall clock stands still at noon; waits take real time.
class NoonClock final : public Clock {
 public:
  absl::Time Wall() const override { return absl::FromUnixSeconds(1795176000); }
  absl::Duration Monotonic() const override { return RealClock().Monotonic(); }
};

class NsactlTest : public ::testing::Test {
 protected:
  struct Ran {
    ExitCode code = ExitCode::kOk;
    std::string out;
    std::string err;
  };

  NsactlTest() : coordinator_((dir_ / "c.sock").string()) {
    // Nothing of the caller's environment reaches a test.
    for (const char* name :
         {"NSACTL_ADDRESS", "NSACTL_CONTEXT", "NSACTL_TIMEOUT", "NSACTL_OUTPUT", "NSACTL_TOKEN",
          "NSACTL_TOKEN_FILE", "NSACTL_TLS_CA_FILE", "NSACTL_TLS_CERTIFICATE_FILE",
          "NSACTL_TLS_PRIVATE_KEY_FILE", "NO_COLOR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"}) {
      unsetenv(name);
    }
    setenv("NSACTL_CONFIG", (dir_ / "config.yaml").c_str(), 1);
    setenv("NSA_STATE_DIR", dir_.path().c_str(), 1);
    setenv("TERM", "xterm", 1);
    setenv("TZ", "UTC", 1);
  }

  // Runs `nsactl --address <fake> arguments...`.
  Ran Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--address", coordinator_.address()});
    return RunAlone(arguments);
  }

  // Runs `nsactl arguments...`.
  Ran RunAlone(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    std::istringstream in(typed_);
    Session session({.out = &out,
                     .err = &err,
                     .terminal = terminal_,
                     .unicode = true,
                     .columns = [] { return 100; },
                     .in = &in,
                     .can_ask = can_ask_},
                    &clock_, &interrupt_);
    Cli cli(&session);
    state();  // what the test wrote into it is visible to the call
    const ExitCode code = cli.Main(arguments);
    state();  // what the call read of it is not changed before the call has ended
    return {code, out.str(), err.str()};
  }

  FakeCoordinatorService::State& state() { return coordinator_.state(); }
  FakeCoordinatorService& service() { return coordinator_.service(); }

  TempDir dir_;
  FakeCoordinator coordinator_;
  NoonClock clock_;
  Interrupt interrupt_;
  bool terminal_ = false;
  bool can_ask_ = false;
  std::string typed_;  // what the person types
};

inline void PrintTo(const ExitCode& code, std::ostream* out) { *out << static_cast<int>(code); }

}  // namespace nsa::client
