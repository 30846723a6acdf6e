// Cores by affinity, and threads by share and environment.
#include "common/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/control_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

TEST(UsableCores, AreThoseOfTheAffinity) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const int quota = CoresOfQuota(ControlGroups("cpu"));
  const int cores = CPU_COUNT(&before);
  EXPECT_EQ(UsableCores(), quota == 0 ? cores : std::min(cores, quota));
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(UsableCores(), 1);
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(ControlGroups, AreOfVersion2OrHaveTheController) {
  using ::testing::ElementsAre;
  EXPECT_THAT(ControlGroups("cpu", "0::/system.slice/nsa-agent.service\n", "/cg"),
              ElementsAre("/cg", "/cg/system.slice", "/cg/system.slice/nsa-agent.service"));
  EXPECT_THAT(ControlGroups("cpu", "0::/\n", "/cg"), ElementsAre("/cg")) << "in a container";
  EXPECT_THAT(ControlGroups("cpu", "0::/../../other\n", "/cg"), ElementsAre("/cg"));
  EXPECT_THAT(
      ControlGroups("cpu", "5:memory:/m\n4:cpu,cpuacct:/docker/4f:5e\n3:cpuset:/c\n", "/cg"),
      ElementsAre("/cg/cpu,cpuacct", "/cg/cpu,cpuacct/docker", "/cg/cpu,cpuacct/docker/4f:5e"));
  EXPECT_THAT(ControlGroups("cpu", "", "/cg"), ElementsAre());
}

TEST(MemoryLimit, IsThatOfEitherVersion) {
  const TempDir dir;
  EXPECT_FALSE(MemoryLimit(dir.path()).has_value());
  std::ofstream(dir / "memory.limit_in_bytes") << "4194304\n";
  ASSERT_TRUE(MemoryLimit(dir.path()).has_value()) << "version 1";
  EXPECT_EQ(MemoryLimit(dir.path())->bytes, 4194304);
  std::filesystem::remove(dir / "memory.limit_in_bytes");
  std::ofstream(dir / "memory.max") << "max\n";
  EXPECT_FALSE(MemoryLimit(dir.path()).has_value());
  std::ofstream(dir / "memory.max") << "2097152\n";
  ASSERT_TRUE(MemoryLimit(dir.path()).has_value());
  EXPECT_EQ(MemoryLimit(dir.path())->file, dir / "memory.max");
}

TEST(CoresOfQuota, TheLeastQuotaCounts) {
  const TempDir dir;
  const std::filesystem::path top = dir.path(), own = dir / "a/b", old = dir / "old";
  std::filesystem::create_directories(own);
  std::filesystem::create_directories(old);
  const auto groups = ControlGroups("cpu", "0::/a/b\n", top);
  EXPECT_EQ(CoresOfQuota(groups), 0);
  std::ofstream(own / "cpu.max") << "max 100000\n";
  EXPECT_EQ(CoresOfQuota(groups), 0);
  std::ofstream(own / "cpu.max") << "400000 100000\n";
  EXPECT_EQ(CoresOfQuota(groups), 4);
  std::ofstream(dir / "a/cpu.max") << "150000 100000\n";
  EXPECT_EQ(CoresOfQuota(groups), 2);
  std::ofstream(own / "cpu.max") << "5000 100000\n";
  EXPECT_EQ(CoresOfQuota(groups), 1);
  std::ofstream(old / "cpu.cfs_period_us") << "100000\n";
  std::ofstream(old / "cpu.cfs_quota_us") << "-1\n";
  EXPECT_EQ(CoresOfQuota({old}), 0);
  std::ofstream(old / "cpu.cfs_quota_us") << "300000\n";
  EXPECT_EQ(CoresOfQuota({old}), 3);
}

TEST(ThreadsOfEach, ShareTheCores) {
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(ThreadsOfEach(1), UsableCores());
  EXPECT_EQ(ThreadsOfEach(0), UsableCores());
  EXPECT_EQ(ThreadsOfEach(UsableCores()), 1);
  EXPECT_EQ(ThreadsOfEach(1000 * UsableCores()), 1);
}

TEST(ThreadsOfEach, TheEnvironmentLowersTheirNumber) {
  setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_EQ(ThreadsOfEach(1), 1);
  setenv("OMP_NUM_THREADS", "1,4", 1);  // for nested loops; OpenMP 5.2, 21.1.2
  EXPECT_EQ(ThreadsOfEach(1), 1);
  setenv("OMP_NUM_THREADS", "1000000", 1);
  EXPECT_EQ(ThreadsOfEach(1), UsableCores());
  for (const char* wrong : {"", "many", "0", "-3", "99999999999999999999"}) {
    setenv("OMP_NUM_THREADS", wrong, 1);
    EXPECT_EQ(ThreadsOfEach(1), UsableCores()) << wrong;
  }
  unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace nsa
