// The agent that the coordinator starts on its own machine.
#include "server/act/local_agent.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Uses a program in place of nsa-agent that writes its identity to the lock file as nsa-agent does,
// and waits.
class LocalAgentTest : public ::testing::Test {
 protected:
  LocalAgentTest() {
    std::filesystem::create_directories(folder_ / "agent");
    const std::string program = (folder_ / "stand-in").string();
    std::ofstream(program) << "#!/bin/sh\n"
                           << "ticks=$(cut -d' ' -f22 /proc/$$/stat)\n"
                           << "boot=$(cat /proc/sys/kernel/random/boot_id)\n"
                           << "echo started >> starts\n"
                           << "env > environment\n"
                           << ": > agent.lock.new\n"
                           << "printf '{\"pid\": %s, \"start_ticks\": %s, \"boot_id\": \"%s\", "
                           << "\"folder\": \"%s\", \"device\": %s, \"inode\": %s}' $$ $ticks $boot "
                           << "\"$PWD\" $(stat -c '%d %i' agent.lock.new) > agent.lock.new\n"
                           << "mv agent.lock.new agent.lock\n"
                           << "exec sleep 60\n";
    chmod(program.c_str(), 0700);
  }
  ~LocalAgentTest() override {
    const auto last = ReadIdentity(folder_ / "agent/agent.lock");
    if (last.ok()) SignalProcess(*last, SIGKILL).IgnoreError();
  }
  std::unique_ptr<LocalAgent> Start(absl::Duration backoff = absl::Milliseconds(500),
                                    const char* state_dir = "agent") {
    return LocalAgent::Start({.program = folder_ / "stand-in",
                              .state_dir = folder_ / state_dir,
                              .coordinator_address = "unix:/nowhere",
                              .first_backoff = backoff,
                              .longest_backoff = 4 * backoff},
                             clock_);
  }
  ProcessIdentity WaitFor(const LocalAgent& agent, pid_t other_than) {
    for (int i = 0; i < 1'000; ++i) {
      const auto process = agent.process();
      if (process.has_value() && process->pid != other_than) return *process;
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "no agent came";
    return {};
  }
  int Starts() {
    std::ifstream file(folder_ / "agent/starts");
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }

  TempDir folder_;
  RealClock clock_;
};

// Lowering the score of this process would need a privilege, so the test asks for a higher score.
TEST_F(LocalAgentTest, GivesTheAgentAnOomScoreOfItsOwn) {
  const auto agent = LocalAgent::Start({.program = folder_ / "stand-in",
                                        .state_dir = folder_ / "agent",
                                        .coordinator_address = "unix:/nowhere",
                                        .oom_score = 300},
                                       clock_);
  const ProcessIdentity process = WaitFor(*agent, 0);
  int score = 0;
  for (int i = 0; i < 6'000 && score < 300; ++i) {
    std::ifstream(absl::StrCat("/proc/", process.pid, "/oom_score_adj")) >> score;
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(score, 300);
}

TEST_F(LocalAgentTest, HasTheVariablesThatGpusNeedAndNoOthers) {
  setenv("NSA_NCCL_LIBRARY", "/l/libnccl.so.2", 1);
  setenv("NCCL_SOCKET_IFNAME", "eth1", 1);
  setenv("NSA_TEST_OTHER", "x", 1);
  const auto agent = Start();
  WaitFor(*agent, 0);
  for (const char* name : {"NSA_NCCL_LIBRARY", "NCCL_SOCKET_IFNAME", "NSA_TEST_OTHER"}) {
    unsetenv(name);
  }
  const std::string environment = ReadWholeFile(folder_ / "agent/environment").value_or("");
  EXPECT_THAT(environment, HasSubstr("NSA_NCCL_LIBRARY=/l/libnccl.so.2\n"));
  EXPECT_THAT(environment, HasSubstr("NCCL_SOCKET_IFNAME=eth1\n"));
  EXPECT_THAT(environment, Not(HasSubstr("NSA_TEST_OTHER")));
}

TEST_F(LocalAgentTest, OutlivesTheCoordinatorAndIsFoundAgain) {
  ProcessIdentity first;
  {
    const auto agent = Start();
    first = WaitFor(*agent, 0);
  }
  EXPECT_TRUE(IsAlive(first));
  const auto again = Start();
  EXPECT_EQ(WaitFor(*again, 0).pid, first.pid);
  EXPECT_EQ(Starts(), 1);
}

TEST_F(LocalAgentTest, GivesWayWhereTheStateFolderWasMoved) {
  ProcessIdentity first;
  {
    const auto agent = Start();
    first = WaitFor(*agent, 0);
  }
  std::filesystem::rename(folder_ / "agent", folder_ / "moved");
  auto again = Start(absl::Milliseconds(500), "moved");
  const ProcessIdentity second = WaitFor(*again, first.pid);
  int status = 0;
  EXPECT_EQ(waitpid(first.pid, &status, 0), first.pid);
  EXPECT_EQ(WTERMSIG(status), SIGTERM) << "its workers would keep running";
  EXPECT_TRUE(IsAlive(second));
  again.reset();
  SignalProcess(second, SIGKILL).IgnoreError();
}

TEST_F(LocalAgentTest, IsNotTheAgentOfTheFolderOfWhichThisIsACopy) {
  const auto agent = Start();
  const ProcessIdentity first = WaitFor(*agent, 0);
  std::filesystem::copy(folder_ / "agent", folder_ / "copy");
  auto other = Start(absl::Milliseconds(500), "copy");
  const ProcessIdentity second = WaitFor(*other, first.pid);
  EXPECT_TRUE(IsAlive(first));
  EXPECT_EQ(agent->process()->pid, first.pid);
  other.reset();
  SignalProcess(second, SIGKILL).IgnoreError();
}

TEST_F(LocalAgentTest, IsStartedAgainWhenItDies) {
  const auto agent = Start();
  const ProcessIdentity first = WaitFor(*agent, 0);
  ASSERT_OK(SignalProcess(first, SIGKILL));
  const ProcessIdentity second = WaitFor(*agent, first.pid);
  EXPECT_TRUE(IsAlive(second));
  EXPECT_EQ(Starts(), 2);
}

TEST_F(LocalAgentTest, ComesBackSoonHoweverOftenItDies) {
  EXPECT_LE(LocalAgent::Options{}.longest_backoff, absl::Seconds(2));
  const auto agent = Start(absl::Milliseconds(25));
  ProcessIdentity process = WaitFor(*agent, 0);
  absl::Duration longest;
  // Without a limit the last wait would be over six seconds.
  for (int death = 0; death < 9; ++death) {
    ASSERT_OK(SignalProcess(process, SIGKILL));
    const absl::Duration killed = clock_.Monotonic();
    process = WaitFor(*agent, process.pid);
    longest = std::max(longest, clock_.Monotonic() - killed);
  }
  EXPECT_LT(longest, absl::Seconds(4));
  EXPECT_EQ(Starts(), 10);
}

TEST_F(LocalAgentTest, ALogThatIsFullBecomesTheOlderOne) {
  const auto log = folder_ / "agent/agent.log";
  std::ofstream(log) << std::string(5'000, 'a');
  const auto agent = LocalAgent::Start({.program = folder_ / "stand-in",
                                        .state_dir = folder_ / "agent",
                                        .coordinator_address = "unix:/nowhere",
                                        .log_bytes = 4'096},
                                       clock_);
  WaitFor(*agent, 0);
  EXPECT_EQ(std::filesystem::file_size(log), 0u);
  EXPECT_EQ(std::filesystem::file_size(log.string() + ".1"), 5'000u);
  std::ofstream(log, std::ios::app) << std::string(6'000, 'b');
  for (int i = 0; i < 6'000 && std::filesystem::file_size(log) > 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(std::filesystem::file_size(log), 0u);
  EXPECT_EQ(std::filesystem::file_size(log.string() + ".1"), 6'000u);
}

}  // namespace
}  // namespace nsa::server
