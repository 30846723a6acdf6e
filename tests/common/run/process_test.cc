#include "common/run/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/run/atomic_file.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

ProcessIdentity Shell(const std::string& script, const SpawnOptions& base = {}) {
  SpawnOptions options = base;
  options.argv = {"/bin/sh", "-c", script};
  const auto identity = Spawn(options);
  EXPECT_OK(identity);
  return identity.ok() ? *identity : ProcessIdentity{};
}

// Waits until the child has ended, without reaping it.
void WaitForZombie(pid_t pid) {
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
}

ExitStatus Reap(pid_t pid) {
  WaitForZombie(pid);
  const auto status = TryReap(pid);
  EXPECT_OK(status);
  EXPECT_TRUE(status->has_value());
  return **status;
}

// Nobody ends a rank because the agent had no descriptor to look at it.
TEST(Process, IsAliveWhenThereIsNoDescriptorToLookWith) {
  const auto self = IdentityOf(getpid());
  ASSERT_OK(self);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status unknown = IdentityOf(getpid()).status();
  const bool alive = IsAlive(*self);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(unknown)) << unknown;
  EXPECT_TRUE(alive);
}

TEST(Process, ItsOwnIdentityIsAliveAndSurvivesAFile) {
  const TempDir folder;
  const auto self = IdentityOf(getpid());
  ASSERT_OK(self);
  EXPECT_TRUE(IsAlive(*self));
  EXPECT_EQ(ProcessState(*self), 'R');
  ASSERT_OK(WriteIdentity(folder / "identity.json", *self));
  const auto read = ReadIdentity(folder / "identity.json");
  ASSERT_OK(read);
  EXPECT_EQ(*read, *self);
}

TEST(Process, AReusedPidIsAnotherProcessAndIsNeverSignalled) {
  const ProcessIdentity child = Shell("exec sleep 100");
  ProcessIdentity earlier = child;
  earlier.start_ticks -= 1;
  EXPECT_FALSE(IsAlive(earlier));
  EXPECT_EQ(ProcessState(earlier), '?');
  EXPECT_THAT(SignalProcess(earlier, SIGKILL), StatusIs(absl::StatusCode::kNotFound));
  ProcessIdentity other_boot = child;
  other_boot.boot_id = "00000000-0000-0000-0000-000000000000";
  EXPECT_FALSE(IsAlive(other_boot));
  EXPECT_EQ(ProcessState(other_boot), '?');
  EXPECT_THAT(SignalProcess(other_boot, SIGKILL), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(IsAlive(child));
  EXPECT_OK(SignalProcess(child, SIGKILL));
  EXPECT_EQ(Reap(child.pid).signal, SIGKILL);
}

TEST(Process, AZombieIsNoProcess) {
  const ProcessIdentity child = Shell("exit 0");
  WaitForZombie(child.pid);
  EXPECT_EQ(ProcessState(child), 'Z');
  EXPECT_FALSE(IsAlive(child));
  EXPECT_THAT(IdentityOf(child.pid), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(SignalProcess(child, SIGKILL), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(Reap(child.pid).code, 0);
  EXPECT_EQ(ProcessState(child), '?');
}

TEST(Process, TellsHowAChildEnded) {
  const ProcessIdentity child = Shell("exit 37");
  const ExitStatus status = Reap(child.pid);
  EXPECT_EQ(status.code, 37);
  EXPECT_EQ(status.signal, 0);
  EXPECT_THAT(TryReap(child.pid), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(TryReap(1), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(Process, ARunningChildIsNotReaped) {
  const ProcessIdentity child = Shell("exec sleep 100");
  const auto status = TryReap(child.pid);
  ASSERT_OK(status);
  EXPECT_FALSE(status->has_value());
  ASSERT_OK(SignalProcess(child, SIGTERM));
  const ExitStatus ended = Reap(child.pid);
  EXPECT_EQ(ended.code, -1);
  EXPECT_EQ(ended.signal, SIGTERM);
}

TEST(Process, SeesAStoppedProcess) {
  const ProcessIdentity child = Shell("exec sleep 100");
  ASSERT_OK(SignalProcess(child, SIGSTOP));
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid), &info, WSTOPPED), 0);
  EXPECT_EQ(ProcessState(child), 'T');
  EXPECT_TRUE(IsAlive(child));
  ASSERT_OK(SignalProcess(child, SIGKILL));
  Reap(child.pid);
}

TEST(Spawn, AppendsOutputAndRunsInItsFolderWithItsEnvironmentAlone) {
  const TempDir folder;
  std::ofstream(folder / "log") << "before\n";
  setenv("NSA_TEST_LEAK", "leaked", 1);
  const ProcessIdentity child =
      Shell("echo $PWD; echo [$GIVEN] [$NSA_TEST_LEAK]; echo error >&2; cat; kill -9 $$",
            {.environment = {{"GIVEN", "a value"}},
             .working_dir = folder.path(),
             .output = folder / "log"});
  EXPECT_EQ(Reap(child.pid).signal, SIGKILL);
  EXPECT_EQ(*ReadWholeFile(folder / "log"),
            absl::StrCat("before\n", folder.path().string(), "\n[a value] []\nerror\n"));
}

TEST(Spawn, GivesASessionAnEmptyMaskDefaultSignalsAndNoDescriptors) {
  const TempDir folder;
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto old = signal(SIGUSR1, SIG_IGN);
  Fd leak(open("/dev/null", O_RDONLY));  // without O_CLOEXEC
  // The command has no pipe: a shell has additional descriptors open while it runs a pipe.
  const ProcessIdentity child = Shell(
      "grep -E 'SigBlk|SigIgn' /proc/self/status; ls /proc/$$/fd; "
      "cut -d' ' -f6 /proc/$$/stat; echo $$",
      {.environment = {{"PATH", "/usr/bin:/bin"}}, .output = folder / "log"});
  leak.Reset();
  signal(SIGUSR1, old);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  Reap(child.pid);
  // The C library leaves its two internal signals (32 and 33) ignored in processes that it spawns.
  EXPECT_THAT(*ReadWholeFile(folder / "log"),
              ::testing::MatchesRegex(absl::StrCat("SigBlk:\t0000000000000000\n"
                                                   "SigIgn:\t0000000[01][08]0000000\n"
                                                   "0\n1\n2\n",
                                                   child.pid, "\n", child.pid, "\n")));
}

TEST(Spawn, NamesWhatIsMissing) {
  const TempDir folder;
  EXPECT_THAT(Spawn({.argv = {"/no/such/program"}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/program")));
  EXPECT_THAT(Spawn({.argv = {"/bin/true"}, .working_dir = folder / "none"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("working folder")));
  EXPECT_THAT(Spawn({.argv = {"/bin/true"}, .output = folder / "none" / "log"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("output")));
  std::ofstream(folder / "text") << "no program";
  EXPECT_THAT(Spawn({.argv = {(folder / "text").string()}}),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("text")));
  chmod((folder / "text").c_str(), 0700);
  EXPECT_THAT(Spawn({.argv = {(folder / "text").string()}}),
              StatusIs(absl::StatusCode::kPermissionDenied))
      << "not an executable format";
  EXPECT_THAT(Spawn({}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Process, AnIdentityFileThatIsNoneIsDataLoss) {
  const TempDir folder;
  EXPECT_THAT(ReadIdentity(folder / "none"), StatusIs(absl::StatusCode::kNotFound));
  for (const char* text : {"", "{", "[]", R"({"pid": "x"})", R"({"pid": 1, "start_ticks": 2})"}) {
    std::ofstream(folder / "identity.json") << text;
    EXPECT_THAT(ReadIdentity(folder / "identity.json"), StatusIs(absl::StatusCode::kDataLoss))
        << text;
  }
}

TEST(Process, FiltersTheEnvironmentByExactNames) {
  setenv("NSA_TEST_A", "1", 1);
  setenv("NSA_TEST_AB", "2", 1);
  EXPECT_THAT(FilterEnvironment({"NSA_TEST_A", "NSA_TEST_MISSING"}),
              ::testing::ElementsAre(::testing::Pair("NSA_TEST_A", "1")));
}

TEST(AtomicFile, ReplacesAWholeFileAndLeavesNothingBeside) {
  const TempDir folder;
  ASSERT_OK(WriteFileAtomically(folder / "f", "one"));
  ASSERT_OK(WriteFileAtomically(folder / "f", "two"));
  EXPECT_EQ(*ReadWholeFile(folder / "f"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_THAT(WriteFileAtomically(folder / "none" / "f", "x"),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(AtomicFile, AReplacedFileKeepsItsModeAndOwner) {
  const TempDir folder;
  EXPECT_THAT(ReplaceFileAtomically(folder / "f", "x"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(WriteFileAtomically(folder / "f", "one"));
  chmod((folder / "f").c_str(), 0640);
  const uid_t owner = geteuid() == 0 ? 65'534 : geteuid();
  ASSERT_EQ(chown((folder / "f").c_str(), owner, static_cast<gid_t>(-1)), 0);
  ASSERT_OK(ReplaceFileAtomically(folder / "f", "two"));
  struct stat info {};
  ASSERT_EQ(stat((folder / "f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  EXPECT_EQ(info.st_uid, owner);
  EXPECT_EQ(*ReadWholeFile(folder / "f"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(AtomicFile, ALinkAtEitherNameIsReplacedAndNotFollowed) {
  const TempDir folder;
  std::ofstream(folder / "precious") << "mine";
  std::filesystem::create_symlink("precious", folder / "f");
  std::filesystem::create_symlink("precious", folder / "f.tmp");
  ASSERT_OK(WriteFileAtomically(folder / "f", "one"));
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "f"));
  EXPECT_EQ(*ReadWholeFile(folder / "f"), "one");
  EXPECT_EQ(*ReadWholeFile(folder / "precious"), "mine");
}

}  // namespace
}  // namespace nsa
