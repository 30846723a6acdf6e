// The logic against folders that look like cgroups, and the real thing where this machine lets root
// make cgroups of version 2.
#include "worker/agent/user/cgroup.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/run/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/agent/user/real_cgroup.h"
#include "worker/agent/rank/memory_kill.h"
#include "worker/agent/user/exec_as.h"

namespace nsa::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

pid_t StartSleeper() {
  const pid_t pid = fork();
  if (pid == 0) {
    execl("/bin/sleep", "sleep", "1000", nullptr);
    _exit(1);
  }
  return pid;
}

TEST(Cgroup, EachAgentFindsOnlyItsOwn) {
  const TempDir folder;
  const CgroupHome home = {.folder = folder.path(), .prefix = "nsa-aa-"};
  const fs::path own = home.Of({"j1", 3, 2});
  EXPECT_EQ(own, folder / "nsa-aa-j1-g3-r2");
  for (const fs::path& path : {own, folder / "nsa-bb-j1-g3-r2", folder / "other"}) {
    ASSERT_OK(MakeCgroup(path));
  }
  EXPECT_THAT(home.All(), ElementsAre(own));
  EXPECT_TRUE(EndCgroup(own));
  EXPECT_THAT(home.All(), IsEmpty());
  EXPECT_TRUE(EndCgroup(own)) << "it is gone already";
  EXPECT_EQ(CgroupHome().Of({"j1", 3, 2}), fs::path());
}

TEST(Cgroup, TwoStateFoldersHaveDifferentNamesAndOneAlwaysTheSame) {
  const auto prefix = [](const char* state) {
    return FindCgroupHome("none", state, "/bin/true")->prefix;
  };
  EXPECT_EQ(prefix("/a"), prefix("/a"));
  EXPECT_NE(prefix("/a"), prefix("/b"));
  EXPECT_EQ(FindCgroupHome("none", "/a", "/bin/true")->why_not, "worker_cgroup is none");
}

TEST(Cgroup, WithoutCgroupKillEachProcessIsKilled) {
  const TempDir folder;
  const pid_t pid = StartSleeper();
  std::ofstream(folder / "cgroup.procs") << pid << "\n";
  KillCgroup(folder.path());
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST(Cgroup, WithCgroupKillThatIsUsed) {
  const TempDir folder;
  std::ofstream(folder / "cgroup.kill") << "";
  KillCgroup(folder.path());
  std::string text;
  std::ifstream(folder / "cgroup.kill") >> text;
  EXPECT_EQ(text, "1");
}

TEST(Cgroup, CountsKillsForMemory) {
  const TempDir folder;
  EXPECT_EQ(OutOfMemoryKills(folder.path()), 0);
  std::ofstream(folder / "memory.events") << "low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\n";
  EXPECT_EQ(OutOfMemoryKills(folder.path()), 3);
}

TEST(Cgroup, APathThatIsNoCgroupIsRefusedWithWhatToDo) {
  for (const char* path : {"/tmp", "relative", "/sys/fs/cgroup/../x", "/sys/fs/cgroup"}) {
    EXPECT_THAT(FindCgroupHome(path, "/a", "/bin/true"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("below /sys/fs/cgroup")))
        << path;
  }
}

TEST(Cgroup, AProcessAndItsChildrenEndWithTheirCgroup) {
  const RealCgroup real("cgroup-test");
  if (!real.usable()) GTEST_SKIP() << "root cannot make cgroups of version 2 here";
  const auto home = FindCgroupHome(real.path(), "/a", Program("nsa-agent"));
  ASSERT_OK(home);
  EXPECT_THAT(home->All(), IsEmpty()) << "of the trial nothing is left";
  const fs::path cgroup = home->Of({"j1", 1, 0});
  ASSERT_OK(MakeCgroup(cgroup));
  const auto process = SpawnAs({.agent_program = Program("nsa-agent"), .cgroup = cgroup},
                               {.argv = {"/bin/sh", "-c", "setsid sleep 1000 & exec sleep 1000"}});
  ASSERT_OK(process);
  const auto count = [&] {
    std::ifstream file(cgroup / "cgroup.procs");
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  for (int i = 0; i < 1000 && count() < 2; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(count(), 2);
  KillCgroup(cgroup);
  int status = 0;
  ASSERT_EQ(waitpid(process->pid, &status, 0), process->pid);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_TRUE(EndCgroup(cgroup));
  EXPECT_FALSE(fs::exists(cgroup));
}

TEST(Cgroup, AProcessForWhichMemoryRanOutIsTold) {
  const RealCgroup real("memory-test");
  if (!real.usable()) GTEST_SKIP() << "root cannot make cgroups of version 2 here";
  const auto write = [](const fs::path& file, const char* text) {
    std::ofstream out(file);
    return static_cast<bool>(out << text << std::flush);
  };
  const fs::path cgroup = fs::path(real.path()) / "rank";
  write(fs::path(real.path()) / "cgroup.subtree_control", "+memory");
  ASSERT_OK(MakeCgroup(cgroup));
  if (!write(cgroup / "memory.max", "33554432")) GTEST_SKIP() << "no memory controller here";
  write(cgroup / "memory.swap.max", "0");
  const auto process = SpawnAs({.agent_program = Program("nsa-agent"), .cgroup = cgroup},
                               {.argv = {"/usr/bin/tail", "/dev/zero"}});
  ASSERT_OK(process);
  int status = 0;
  ASSERT_EQ(waitpid(process->pid, &status, 0), process->pid);
  ASSERT_EQ(WTERMSIG(status), SIGKILL);
  MemoryEvidence evidence = {.own_kills = OutOfMemoryKills(cgroup)};
  EXPECT_EQ(evidence.own_kills, 1);
  FindMemoryLimit(cgroup, &evidence);
  EXPECT_EQ(OutOfMemoryText({.signal = SIGKILL}, evidence),
            absl::StrCat("0.03 GiB (", (cgroup / "memory.max").string(), ")"));
  EXPECT_TRUE(EndCgroup(cgroup));
}

}  // namespace
}  // namespace nsa::agent
