// Programs that do what they should, and ones that do not. More of them: server/notice/mail_test.
#include "common/run/command.h"

#include <csignal>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

class RunCommandTest : public ::testing::Test {
 protected:
  absl::StatusOr<CommandEnd> Shell(const std::string& script, Command command = {}) {
    command.argv = {"/bin/sh", "-c", script};
    return RunCommand(command, cancelled_);
  }

  std::atomic<bool> cancelled_ = false;
};

TEST_F(RunCommandTest, KeepsBothOutputsAndTheExitCodeApart) {
  const auto end =
      Shell("cat; echo \"$WORD\"; echo wrong >&2; exit 3",
            {.environment = {{"PATH", "/usr/bin:/bin"}, {"WORD", "given"}}, .input = "input\n"});
  ASSERT_OK(end);
  EXPECT_EQ(end->output, "input\ngiven\n");
  EXPECT_EQ(end->errors, "wrong\n");
  ASSERT_TRUE(end->exit.has_value());
  EXPECT_EQ(end->exit->code, 3);
}

TEST_F(RunCommandTest, HasNoOtherEnvironmentAndNoOtherDescriptors) {
  setenv("NSA_TEST_SECRET", "secret", 1);
  const auto end =
      Shell("echo \"$NSA_TEST_SECRET\"; for fd in /proc/self/fd/*; do echo ${fd##*/}; done");
  ASSERT_OK(end);
  EXPECT_EQ(end->output.find("secret"), std::string::npos);
  // 3 or more is the shell's own look at the folder.
  EXPECT_THAT(end->output, HasSubstr("0\n1\n2\n"));
  EXPECT_EQ(end->output.find("\n5\n"), std::string::npos) << end->output;
}

TEST_F(RunCommandTest, KillsAProgramThatHangsWithWhatItStarted) {
  const absl::Duration begin = RealClock().Monotonic();
  const auto end = Shell("echo begins; /bin/sleep 600 & wait", {.limit = absl::Milliseconds(500)});
  ASSERT_OK(end);
  EXPECT_FALSE(end->exit.has_value());
  EXPECT_FALSE(end->immortal);
  EXPECT_EQ(end->output, "begins\n");
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(20));
}

TEST_F(RunCommandTest, EndsAtOnceWhenItIsCancelled) {
  cancelled_ = true;
  const auto end = Shell("/bin/sleep 600");
  ASSERT_OK(end);
  EXPECT_FALSE(end->exit.has_value());
}

TEST_F(RunCommandTest, KeepsTheBeginningOfALongOutput) {
  const auto end = Shell("i=0; while [ $i -lt 1000 ]; do echo 0123456; i=$((i + 1)); done",
                         {.printed_bytes = 64});
  ASSERT_OK(end);
  EXPECT_EQ(end->output.substr(0, 16), "0123456\n0123456\n");
  EXPECT_LE(end->output.size(), 64U);
}

TEST_F(RunCommandTest, SaysThatAProgramCannotBeStarted) {
  EXPECT_THAT(
      RunCommand({.argv = {"/nowhere/squeue"}}, cancelled_),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/nowhere/squeue cannot be started")));
}

TEST_F(RunCommandTest, NamesTheSignalThatEndedIt) {
  const auto end = Shell("kill -TERM $$");
  ASSERT_OK(end);
  ASSERT_TRUE(end->exit.has_value());
  EXPECT_EQ(end->exit->signal, SIGTERM);
}

}  // namespace
}  // namespace nsa
