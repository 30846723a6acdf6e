// The log level of a program, and the error for an unknown level.
#include "common/base/log.h"

#include <cstdlib>

#include "gmock/gmock.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(InitLog, TakesTheLevelThatIsNamedAndTheEnvironmentBeforeIt) {
  unsetenv("NSA_LOG_LEVEL");
  EXPECT_TRUE(InitLog("a", "warn").ok());
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::warn);
  EXPECT_TRUE(InitLog("b", "off").ok());
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::off);
  setenv("NSA_LOG_LEVEL", "debug", 1);
  EXPECT_TRUE(InitLog("c", "warn").ok());
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::debug);
  setenv("NSA_LOG_LEVEL", "", 1);
  EXPECT_TRUE(InitLog("d", "error").ok());
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::err);
}

TEST(InitLog, ALineOfTheLogSteersNoTerminal) {
  unsetenv("NSA_LOG_LEVEL");
  ASSERT_TRUE(InitLog("g", "info").ok());
  ::testing::internal::CaptureStderr();
  spdlog::info("job {} said so", "\x1b]0;pwned\x07");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(" I g: job \\x1b]0;pwned\\x07 said so\n"));
}

TEST(InitLog, RefusesALevelThatThereIsNotAndIsNotSilent) {
  unsetenv("NSA_LOG_LEVEL");
  const absl::Status flag = InitLog("e", "loud");
  EXPECT_EQ(flag.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(flag.message()),
              AllOf(HasSubstr("--log-level: 'loud'"), HasSubstr("trace, debug, info, warn")));
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::info);
  setenv("NSA_LOG_LEVEL", "OFF!", 1);
  EXPECT_THAT(std::string(InitLog("f", "info").message()), HasSubstr("NSA_LOG_LEVEL: 'OFF!'"));
  EXPECT_EQ(spdlog::default_logger()->level(), spdlog::level::info);
  unsetenv("NSA_LOG_LEVEL");
}

}  // namespace
}  // namespace nsa
