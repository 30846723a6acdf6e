// nsa-coordinator as a program: exit codes, signals, descriptors.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/rpc/rpc.h"
#include "common/run/process.h"
#include "nsa/v1/coordinator.grpc.pb.h"
#include "tests/server/program_fixture.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(ProgramTest, DrainsOnSigtermAndExitsZero) {
  const pid_t pid = Start("state", {"--listen", ""});
  ASSERT_TRUE(Answers("state"));
  const absl::Duration start = RealClock().Monotonic();
  kill(pid, SIGTERM);
  EXPECT_EQ(WaitForExit(pid), 0) << Output();
  EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(10));
  EXPECT_THAT(Output(), HasSubstr("workers keep running"));
}

TEST_F(ProgramTest, ComesBackAfterKillNine) {
  const pid_t pid = Start("state", {"--listen", ""});
  ASSERT_TRUE(Answers("state"));
  kill(pid, SIGKILL);
  WaitForExit(pid);
  Start("state", {"--listen", ""});
  EXPECT_TRUE(Answers("state")) << Output();
}

TEST_F(ProgramTest, ExitsFiveWhenTheStateFolderIsInUse) {
  const pid_t first = Start("state", {"--listen", ""});
  ASSERT_TRUE(Answers("state"));
  EXPECT_EQ(WaitForExit(Start("state", {"--listen", ""})), 5);
  EXPECT_THAT(Output(), HasSubstr(absl::StrCat("process ", first)));
  EXPECT_TRUE(Answers("state")) << "the first one's socket is still its own";
}

TEST_F(ProgramTest, ExitsFourWithinTwoSecondsWhenThePortIsTaken) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  socklen_t length = sizeof(address);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length);
  const std::string taken = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const absl::Duration start = RealClock().Monotonic();
  EXPECT_EQ(WaitForExit(Start("state", {"--listen", taken})), 4);
  EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(2));
  EXPECT_THAT(Output(), HasSubstr(taken));
}

TEST_F(ProgramTest, ExitsTwoOnBadUsageAndConfiguration) {
  EXPECT_EQ(WaitForExit(Start("state", {"--no-such-flag"})), 2);
  EXPECT_EQ(WaitForExit(Start("state", {"--log-level", "loud"})), 2);
  EXPECT_THAT(Output(), HasSubstr("--log-level: 'loud' (trace, debug, info"));
  EXPECT_EQ(WaitForExit(Start("state", {"--listen", "127.0.0.1:99999"})), 2);
  EXPECT_THAT(Output(), HasSubstr("listen_address: '127.0.0.1:99999'"));
  config_ = "local_agnet: false\n";
  EXPECT_EQ(WaitForExit(Start("state")), 2);
  EXPECT_THAT(Output(), HasSubstr("local_agent")) << "did you mean";
  config_ = "local_agent: false\nlisten_address: 0.0.0.0:1\n";
  EXPECT_NE(WaitForExit(Start("state")), 0);
  EXPECT_THAT(Output(), HasSubstr("can be reached from other machines"));
}

// The inodes of the sockets that a process has open.
std::set<std::string> Sockets(pid_t pid) {
  std::set<std::string> inodes;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"))) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry, error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// The TCP addresses on which a process listens, as /proc/net/tcp writes them: 0100007F:PORT.
std::vector<std::string> Listening(pid_t pid) {
  const std::set<std::string> sockets = Sockets(pid);
  std::vector<std::string> addresses;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream lines(absl::StrCat("/proc/", pid, "/net/", table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      const std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      if (word.size() > 9 && word[3] == "0A" && sockets.contains(word[9])) {
        addresses.push_back(word[1]);
      }
    }
  }
  return addresses;
}

TEST_F(ProgramTest, AFreshStartListensOnTheSocketAndForMetricsOnLoopbackAlone) {
  metrics_ = "127.0.0.1:0";
  const pid_t pid = Start("state");
  ASSERT_TRUE(Answers("state")) << Output();
  // HTTP starts after gRPC.
  ASSERT_TRUE(Within(absl::Seconds(20), [&] { return !Listening(pid).empty(); }));
  absl::SleepFor(absl::Milliseconds(200));
  const std::vector<std::string> addresses = Listening(pid);
  // The port of metrics and page.
  EXPECT_THAT(addresses, ElementsAre(StartsWith("0100007F:")));
  struct stat info {};
  ASSERT_EQ(stat((folder_ / "state/coordinator.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((folder_ / "state/token").c_str(), &info), 0) << "changes on the page need one";
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// Runs nsactl as the user nobody (65534) or as this user, and returns its exit code.
int Ctl(const TempDir& folder, bool as_nobody, const std::string& address) {
  const std::string command = absl::StrCat(
      as_nobody ? "setpriv --reuid=65534 --regid=65534 --clear-groups " : "",
      "env -i NSA_STATE_DIR=", (folder / "state").string(), " NSACTL_CONFIG=/dev/null ",
      (folder / "nsactl").string(), " list --timeout 10s --address ", address, " >>",
      (folder / "said").string(), " 2>&1");
  return WEXITSTATUS(std::system(command.c_str()));
}

TEST_F(ProgramTest, ASecondUserIsRefusedOnTheSocketAndOnTcp) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::filesystem::copy_file(Program("nsactl"), folder_ / "nsactl");
  Start("state", {"--listen", "127.0.0.1:0"});
  ASSERT_TRUE(Answers("state")) << Output();
  ASSERT_TRUE(Within(absl::Seconds(20), [&] { return !TcpAddress().empty(); }));
  const std::string tcp = TcpAddress();
  const std::string socket = absl::StrCat("unix:", (folder_ / "state/coordinator.sock").string());
  EXPECT_EQ(Ctl(folder_, false, tcp), 0) << "finds the token by itself";
  EXPECT_EQ(Ctl(folder_, false, socket), 0);
  // The modes of the files must suffice, without that of the folder.
  for (const auto& path : {folder_.path(), folder_ / "state", folder_ / "nsactl"}) {
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  }
  EXPECT_EQ(Ctl(folder_, true, socket), 4) << "cannot be reached";
  EXPECT_EQ(Ctl(folder_, true, tcp), 5) << "no token";
}

TEST_F(ProgramTest, ATokenFileThatOthersCanReadIsRefusedAtTheStart) {
  std::filesystem::create_directories(folder_ / "state");
  std::ofstream(folder_ / "state/token") << "0123456789abcdef\n";
  chmod((folder_ / "state/token").c_str(), 0644);
  EXPECT_EQ(WaitForExit(Start("state", {"--listen", "127.0.0.1:0"})), 2);
  EXPECT_THAT(Output(), HasSubstr("run chmod 600"));
}

TEST_F(ProgramTest, ExitsThreeWhenTheStoreIsDamaged) {
  std::filesystem::create_directories(folder_ / "state");
  std::ofstream(folder_ / "state/jobs.sqlite") << std::string(4'096, 'x');
  EXPECT_EQ(WaitForExit(Start("state", {"--listen", ""})), 3);
  EXPECT_THAT(Output(), HasSubstr("jobs.sqlite is damaged"));
}

TEST_F(ProgramTest, ExitsThreeWhenTheStoreIsLostUntilANewOneIsMadeOnPurpose) {
  std::filesystem::create_directories(folder_ / "state/logs/jabc");
  EXPECT_EQ(WaitForExit(Start("state", {"--listen", ""})), 3);
  EXPECT_THAT(Output(), HasSubstr("jobs.sqlite is missing or empty, but logs shows"));
  EXPECT_EQ(WaitForExit(Start("state", {"--new-store"})), 0);
  EXPECT_EQ(WaitForExit(Start("state", {"--new-store"})), 5) << "it has one now";
  Start("state", {"--listen", ""});
  EXPECT_TRUE(Answers("state")) << Output();
}

// gRPC 1.51 itself would never accept a connection again.
TEST_F(ProgramTest, GoesOnWhenItsUserOpensMoreConnectionsThanItHasDescriptors) {
  const pid_t pid =
      Start("state", {"--listen", ""}, {"/bin/sh", "-c", "ulimit -n 64; exec \"$0\" \"$@\""});
  ASSERT_TRUE(Answers("state"));
  std::vector<Fd> connections;
  sockaddr_un address{.sun_family = AF_UNIX};
  const std::string path = (folder_ / "state/coordinator.sock").string();
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  for (int i = 0; i < 200; ++i) {
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) break;
    connections.push_back(std::move(fd));
  }
  EXPECT_GT(connections.size(), 60u);
  EXPECT_TRUE(Answers("state")) << Output();
  EXPECT_LT(Sockets(pid).size(), 60u);
  connections.clear();
  EXPECT_TRUE(Answers("state"));
}

TEST_F(ProgramTest, EndsItselfWhenItCannotBeReachedAnyMore) {
  const pid_t pid = Start("state", {"--listen", ""});
  ASSERT_TRUE(Answers("state"));
  ASSERT_TRUE(std::filesystem::remove(folder_ / "state/coordinator.sock"));
  const absl::Duration start = RealClock().Monotonic();
  EXPECT_EQ(WaitForExit(pid), 6) << Output();
  EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(40));
  Start("state", {"--listen", ""});
  EXPECT_TRUE(Answers("state"));
}

}  // namespace
}  // namespace nsa
