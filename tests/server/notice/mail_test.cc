// A mail program that does what it should, and ones that do not.
#include "server/notice/mail.h"

#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

class MailTest : public ::testing::Test {
 protected:
  // A shell script; the test's folder is $0's.
  std::string Script(const std::string& body) {
    const std::string path = (folder_ / "sendmail").string();
    std::ofstream(path) << "#!/bin/sh\ncd \"${0%/*}\"\n" << body << "\n";
    chmod(path.c_str(), 0700);
    return path;
  }
  Outcome Send(const std::string& script, const std::string& message = "To: a@b\n\nhello\n",
               absl::Duration limit = absl::Seconds(20)) {
    return SendMail(Script(script), message, limit, cancelled_);
  }
  std::string Read(const std::string& name) {
    std::stringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return text.str();
  }

  TempDir folder_;
  std::atomic<bool> cancelled_ = false;
};

TEST_F(MailTest, TheProgramGetsTheMessageAndItsArguments) {
  const std::string message = "To: a@b\n\n" + std::string(300'000, 'x') + "\n.\nend\n";
  const Outcome outcome = Send("cat >message; echo \"$@\" >arguments", message);
  EXPECT_EQ(outcome.kind, Outcome::kDelivered) << outcome.said;
  EXPECT_EQ(Read("message"), message);
  EXPECT_EQ(Read("arguments"), "-t -i\n");
}

TEST_F(MailTest, ItsExitCodeDecidesAndItsWordsAreKept) {
  Outcome outcome = Send("echo 'mailbox full' >&2; exit 75");
  EXPECT_EQ(outcome.kind, Outcome::kAgain);
  EXPECT_EQ(outcome.said, "exit code 75: mailbox full");
  outcome = Send("echo 'no such user'; exit 67");
  EXPECT_EQ(outcome.kind, Outcome::kRefused);
  EXPECT_EQ(outcome.said, "exit code 67: no such user");
  outcome = Send("kill -SEGV $$");
  EXPECT_EQ(outcome.kind, Outcome::kAgain);
  EXPECT_THAT(outcome.said, HasSubstr("signal 11"));
}

TEST_F(MailTest, AProgramThatReadsNothingDoesNotEndUsWithSigpipe) {
  EXPECT_EQ(Send("exit 0", std::string(1 << 20, 'x')).kind, Outcome::kDelivered);
}

TEST_F(MailTest, AProgramThatPrintsWithoutEndFillsNoMemory) {
  const Outcome outcome = Send("yes 'a long line of complaints' 2>/dev/null; exit 75");
  EXPECT_EQ(outcome.kind, Outcome::kAgain);
  EXPECT_THAT(outcome.said, HasSubstr("exit code 75: a long line"));
}

TEST_F(MailTest, AProgramThatHangsIsKilledWithItsChildren) {
  const absl::Duration begin = RealClock().Monotonic();
  const Outcome outcome = Send("sleep 600 & echo $! >child; wait", "x", absl::Milliseconds(500));
  EXPECT_EQ(outcome.kind, Outcome::kAgain);
  EXPECT_THAT(outcome.said, HasSubstr("not done after 500ms; killed"));
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(10));
  const pid_t child = std::stoi(Read("child"));
  EXPECT_TRUE(Within(absl::Seconds(10), [&] {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string pid, name, state;
    return !(stat >> pid >> name >> state) || state == "Z";
  }));
}

TEST_F(MailTest, TheEndOfTheCoordinatorEndsIt) {
  std::thread ends([this] {
    EXPECT_TRUE(Within(absl::Seconds(10), [&] { return !Read("started").empty(); }));
    cancelled_ = true;
  });
  const absl::Duration begin = RealClock().Monotonic();
  const Outcome outcome = Send("echo yes >started; sleep 600", "x", absl::Minutes(5));
  ends.join();
  EXPECT_EQ(outcome.kind, Outcome::kAgain);
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(20));
}

TEST_F(MailTest, AProgramThatCannotBeStartedIsTriedAgain) {
  const Outcome outcome = SendMail("/no/such/program", "x", absl::Seconds(5), cancelled_);
  EXPECT_EQ(outcome.kind, Outcome::kAgain);
  EXPECT_THAT(outcome.said, HasSubstr("/no/such/program cannot be started"));
}

TEST_F(MailTest, ItInheritsNeitherDescriptorsNorTheEnvironment) {
  setenv("NSA_TEST_SECRET", "s3cr3t", 1);
  const std::ofstream open(folder_ / "open");
  // No pipe: the shell could still have its ends open when they are listed.
  EXPECT_EQ(Send("env >environment; ls /proc/$$/fd >descriptors").kind, Outcome::kDelivered);
  EXPECT_THAT(Read("environment"), ::testing::Not(HasSubstr("NSA_TEST_SECRET")));
  // A shell keeps what it needs itself open from descriptor 10 on.
  EXPECT_THAT(Read("descriptors"), ::testing::MatchesRegex("0\n1\n(1[0-9]\n)*2\n(255\n)?"));
}

}  // namespace
}  // namespace nsa::server
