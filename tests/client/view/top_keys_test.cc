// nsactl top on a pseudo-terminal of 80 columns and 24 rows.
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "tests/client/commands_fixture.h"
#include "tests/testing/paths.h"

namespace nsa::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kPatience = absl::Seconds(60);

// A program on a pseudo-terminal, and what it has written there.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& command) {
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(openpty(&master_, &slave_, nullptr, nullptr, &size), 0);
    EXPECT_EQ(tcgetattr(slave_, &before_), 0);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    child_ = fork();
    if (child_ == 0) {
      close(master_);
      login_tty(slave_);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    close(master_);
    close(slave_);
  }

  void Type(const std::string& keys) {
    EXPECT_EQ(write(master_, keys.data(), keys.size()), std::ssize(keys));
  }
  void Signal(int signal) { kill(child_, signal); }

  // Waits until it has written the text, after what was waited for before.
  ::testing::AssertionResult Shows(const std::string& text) {
    const absl::Time end = absl::Now() + kPatience;
    while (absl::Now() < end) {
      if (const size_t at = written_.find(text, seen_); at != std::string::npos) {
        seen_ = at + text.size();
        return ::testing::AssertionSuccess();
      }
      if (!Read(absl::Milliseconds(100)) && Ended()) break;
    }
    return ::testing::AssertionFailure() << "no '" << text << "' in " << written_.substr(seen_);
  }

  // Waits for its end and returns the exit code; -1 when there is none.
  int ExitCodeOf() {
    for (const absl::Time end = absl::Now() + kPatience; absl::Now() < end && !Ended();) {
      Read(absl::Milliseconds(20));
    }
    while (Read(absl::ZeroDuration())) {
    }
    return child_ == 0 && WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

  // Whether lines and echo are as before, and the cursor is there.
  bool IsRestored() const {
    termios now{};
    tcgetattr(slave_, &now);
    const bool cursor = written_.rfind("\x1B[?25h") != std::string::npos &&
                        (written_.rfind("\x1B[?25l") == std::string::npos ||
                         written_.rfind("\x1B[?25h") > written_.rfind("\x1B[?25l"));
    return now.c_lflag == before_.c_lflag &&
           std::equal(std::begin(now.c_cc), std::end(now.c_cc), std::begin(before_.c_cc)) && cursor;
  }
  bool IsTaken() const {
    termios now{};
    tcgetattr(slave_, &now);
    return (now.c_lflag & (ICANON | ECHO)) == 0;
  }

 private:
  bool Read(absl::Duration patience) {
    pollfd wait{master_, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return false;
    std::array<char, 4096> buffer;
    const ssize_t got = read(master_, buffer.data(), buffer.size());
    if (got > 0) written_.append(buffer.data(), static_cast<size_t>(got));
    return got > 0;
  }
  bool Ended() {
    if (child_ > 0 && waitpid(child_, &status_, WNOHANG) == child_) child_ = 0;
    return child_ == 0;
  }

  int master_ = -1;
  int slave_ = -1;
  pid_t child_ = -1;
  int status_ = 0;
  termios before_{};
  std::string written_;
  size_t seen_ = 0;
};

class TopKeysTest : public CommandsTest {
 protected:
  std::unique_ptr<Terminal> Top() {
    state();
    return std::make_unique<Terminal>(
        std::vector<std::string>{Program("nsactl"), "--address", coordinator_.address(), "top"});
  }
};

TEST_F(TopKeysTest, SelectSortFilterAndOpen) {
  const auto top = Top();
  ASSERT_TRUE(top->Shows("> demo"));
  EXPECT_TRUE(top->IsTaken());
  ASSERT_TRUE(top->Shows("order: need"));
  top->Type("\x1B[B");
  EXPECT_TRUE(top->Shows("> old"));
  top->Type("k");
  EXPECT_TRUE(top->Shows("> demo"));
  top->Type("s");
  EXPECT_TRUE(top->Shows("order: name"));
  top->Type("r");
  EXPECT_TRUE(top->Shows("order: name, reversed"));
  top->Type("/state=fi");
  EXPECT_TRUE(top->Shows("no jobs match: state=fi"));
  top->Type(
      "\x7F\x7F"
      "failed\r");
  EXPECT_TRUE(top->Shows("> old"));
  EXPECT_TRUE(top->Shows("/ filter: state=failed"));
  top->Type("\r");
  EXPECT_TRUE(top->Shows("jold12345678a")) << "the job alone, as watch shows it";
  EXPECT_TRUE(top->Shows("Esc back"));
  top->Type("\x1B");
  EXPECT_TRUE(top->Shows("order: name, reversed"));
  top->Type("q");
  EXPECT_EQ(top->ExitCodeOf(), 0);
  EXPECT_TRUE(top->IsRestored());
}

TEST_F(TopKeysTest, StopAsksFirst) {
  const auto top = Top();
  ASSERT_TRUE(top->Shows("> demo"));
  top->Type("x");
  ASSERT_TRUE(top->Shows("Stop demo after this step, with a checkpoint?"));
  top->Type("n");
  ASSERT_TRUE(top->Shows("x stop"));
  EXPECT_THAT(service().Requests("StopJob"), IsEmpty());
  top->Type("xy");
  ASSERT_TRUE(top->Shows("demo (jdemo1234567): "));
  ASSERT_THAT(service().Requests("StopJob"), SizeIs(1));
  EXPECT_THAT(service().Requests("StopJob")[0], HasSubstr("STOP_MODE_GRACEFUL"));
  top->Type("q");
  EXPECT_EQ(top->ExitCodeOf(), 0);
}

TEST_F(TopKeysTest, TheTerminalIsRestoredOnEveryEnd) {
  const std::pair<int, std::function<void(Terminal*)>> ends[] = {
      {0, [](Terminal* top) { top->Type("q"); }},
      {130, [](Terminal* top) { top->Type("\x03"); }},
      {130, [](Terminal* top) { top->Signal(SIGTERM); }},
      {130, [](Terminal* top) { top->Signal(SIGHUP); }},
      {130, [](Terminal* top) { top->Type("\x1C\x03"); }}};  // Ctrl-\ does not kill it
  for (const auto& [code, end] : ends) {
    const auto top = Top();
    ASSERT_TRUE(top->Shows("> demo"));
    end(top.get());
    EXPECT_EQ(top->ExitCodeOf(), code);
    EXPECT_TRUE(top->IsRestored()) << code;
  }
}

TEST_F(TopKeysTest, ALostCoordinatorIsSaidAndKeysWorkOn) {
  std::vector<grpc::Status>& answers = state().failures["ListJobs"];
  answers = std::vector(1000, grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  answers[0] = answers[1] = grpc::Status::OK;  // active jobs, and those that have ended
  const auto top = Top();
  ASSERT_TRUE(top->Shows("> demo"));
  ASSERT_TRUE(top->Shows("coordinator not reached"));
  top->Type("s");
  EXPECT_TRUE(top->Shows("order: name"));
  top->Type("q");
  EXPECT_EQ(top->ExitCodeOf(), 0);
  EXPECT_TRUE(top->IsRestored());
}

TEST_F(TopKeysTest, AnErrorRestoresTheTerminalBeforeItIsSaid) {
  state().failures["ListJobs"] = {
      grpc::Status::OK, grpc::Status::OK,
      grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "token: expired")};
  const auto top = Top();
  ASSERT_TRUE(top->Shows("> demo"));
  EXPECT_TRUE(top->Shows("token: expired"));
  EXPECT_EQ(top->ExitCodeOf(), static_cast<int>(ExitCode::kAuth));
  EXPECT_TRUE(top->IsRestored());
}

}  // namespace
}  // namespace nsa::client
