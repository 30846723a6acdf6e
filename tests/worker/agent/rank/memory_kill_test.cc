#include "worker/agent/rank/memory_kill.h"

#include <signal.h>

#include <fstream>

#include "common/base/control_groups.h"
#include "common/run/out_of_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::agent {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(OutOfMemoryText, TellsTheLimitOfARankThatTheKernelEnded) {
  const RankExit killed = {.signal = SIGKILL};
  EXPECT_EQ(OutOfMemoryText(killed, {.own_kills = 1, .limit_bytes = 2 * kGiB, .limit_file = "/c"}),
            "2.00 GiB (/c)");
  EXPECT_EQ(OutOfMemoryText(killed, {.recent_kills = 1, .limit_bytes = 64 * kGiB}),
            "64.00 GiB (the memory of the machine)");
  EXPECT_EQ(OutOfMemoryText(killed, {.own_kills = 1}), "of unknown size");
}

TEST(OutOfMemoryText, IsEmptyWithoutAKillOfTheKernel) {
  const MemoryEvidence kills = {.own_kills = 1, .recent_kills = 1, .limit_bytes = kGiB};
  EXPECT_EQ(OutOfMemoryText({.signal = SIGKILL}, {.limit_bytes = kGiB}), "") << "by a user";
  EXPECT_EQ(OutOfMemoryText({.signal = SIGSEGV}, kills), "") << "it died of something else";
  EXPECT_EQ(OutOfMemoryText({.code = 0}, kills), "") << "one of its children was ended";
  EXPECT_EQ(OutOfMemoryText({.code = 1}, kills), "");
  EXPECT_EQ(OutOfMemoryText({.machine_restarted = true}, kills), "");
  EXPECT_EQ(OutOfMemoryText({.start_error = "not there"}, kills), "");
}

TEST(OutOfMemoryText, OfARankThatTheSystemRefusedMemory) {
  const RankExit refused = {.code = kExitOutOfMemory};
  EXPECT_EQ(OutOfMemoryText(refused, {.limit_bytes = 2 * kGiB, .limit_file = "/c"}),
            "2.00 GiB (/c)");
}

TEST(OutOfMemoryText, AKillOfTheMachineIsNotThatOfARankWhichTheAgentEnded) {
  const RankExit ended = {.signal = SIGKILL, .killed_by_agent = true};
  EXPECT_EQ(OutOfMemoryText(ended, {.recent_kills = 1, .limit_bytes = kGiB}), "");
  EXPECT_EQ(OutOfMemoryText(ended, {.own_kills = 1, .limit_bytes = kGiB, .limit_file = "/c"}),
            "1.00 GiB (/c)")
      << "the kernel was first";
}

TEST(OutOfMemoryText, OfAnAdoptedRankItsOwnKillsDecide) {
  const RankExit unknown = {.code = -1, .signal = 0};
  EXPECT_EQ(OutOfMemoryText(unknown, {.recent_kills = 1, .limit_bytes = kGiB}), "");
  EXPECT_THAT(OutOfMemoryText(unknown, {.own_kills = 1, .limit_bytes = kGiB}), HasSubstr("1.00"));
}

TEST(KillsIn, ReadsTheCounterOfVmstat) {
  EXPECT_EQ(KillsIn("pgfault 9\noom_kill 3\nnuma_hit 4\n"), 3);
  EXPECT_EQ(KillsIn("oom_kill_x 3\n"), 0);
  EXPECT_EQ(KillsIn(""), 0);
}

TEST(FindMemoryLimit, IsTheLeastOfThoseAboveTheCgroup) {
  const TempDir mount;
  const fs::path cgroup = mount / "service/rank";
  fs::create_directories(cgroup);
  const auto limit = [&](const fs::path& folder, const std::string& text) {
    std::ofstream(folder / "memory.max") << text << "\n";
  };
  MemoryEvidence evidence;
  FindMemoryLimit(cgroup, &evidence, mount.path());
  EXPECT_GT(evidence.limit_bytes, 0) << "the machine's";
  EXPECT_EQ(evidence.limit_file, "");
  limit(cgroup, "max");
  limit(mount / "service", "2097152");
  limit(mount.path(), "4194304");
  FindMemoryLimit(cgroup, &evidence, mount.path());
  EXPECT_EQ(evidence.limit_bytes, 2097152);
  EXPECT_EQ(evidence.limit_file, (mount / "service/memory.max").string());
}

TEST(FindMemoryLimit, WithoutACgroupOfItsOwnARankHasTheLimitsOfTheAgent) {
  MemoryEvidence evidence;
  FindMemoryLimit("", &evidence);
  EXPECT_GT(evidence.limit_bytes, 0);
  for (const fs::path& group : ControlGroups("memory")) {
    EXPECT_LE(evidence.limit_bytes, MemoryLimit(group).value_or(GroupLimit{INT64_MAX, ""}).bytes)
        << group;
  }
}

TEST(RecentKills, CountsThoseOfTheLastSeconds) {
  const TempDir folder;
  const fs::path file = folder / "vmstat";
  const auto total = [&](int kills) { std::ofstream(file) << "oom_kill " << kills << "\n"; };
  total(5);
  RecentKills kills(file);
  absl::Duration now = absl::Seconds(1000);
  const auto pass = [&](int seconds) {
    for (int i = 0; i < 10 * seconds; ++i) kills.Look(now += absl::Milliseconds(100));
  };
  pass(30);
  EXPECT_EQ(kills.count(), 0) << "those before count nothing";
  total(7);
  kills.LookAgain(now);
  EXPECT_EQ(kills.count(), 2);
  pass(9);
  EXPECT_EQ(kills.count(), 2);
  pass(15);
  EXPECT_EQ(kills.count(), 0) << "long ago";
}

TEST(RankExit, IsTheSameForTheNextAgent) {
  const TempDir folder;
  const fs::path file = folder / "exit.json";
  EXPECT_EQ(LoadExit(file), std::nullopt);
  ASSERT_OK(SaveExit(file, {.code = -1, .signal = 9, .out_of_memory = "2.00 GiB (/c)"}));
  const auto exit = LoadExit(file);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->signal, 9);
  EXPECT_EQ(exit->out_of_memory, "2.00 GiB (/c)");
  std::ofstream(file) << R"({"code":0,"signal":0,"killed_by_agent":false,"start_error":""})";
  ASSERT_TRUE(LoadExit(file).has_value()) << "of an earlier agent";
  EXPECT_EQ(LoadExit(file)->out_of_memory, "");
}

}  // namespace
}  // namespace nsa::agent
