// What preflight says about starts with fewer ranks (restart.min_ranks).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/estimate/memory/memory.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Four ranks on a machine with as many GPUs, or two to start with.
class FewerRules : public testing::Test {
 protected:
  FewerRules() {
    job.spec.mutable_resources()->set_gpus(4);
    job.spec.mutable_train()->set_batch_size(8);
    job.machine.gpus.resize(4, job.machine.gpus[0]);
    job.spec.mutable_guard()->set_min_tokens_per_second(480'000);
    job.spec.mutable_restart()->set_min_ranks(2);
  }
  // "field: problem; fix" of the rule's finding; empty without one.
  std::string Text(const char* rule) {
    const v1::PreflightReport report = job.Check();
    const v1::Finding* finding = FindingOf(report, rule);
    return finding == nullptr
               ? ""
               : absl::StrCat(finding->field(), ": ", finding->problem(), "; ", finding->fix());
  }
  GoodJob job;
};

TEST_F(FewerRules, AJobThatMayStartWithFewerRanksIsAccepted) {
  EXPECT_TRUE(job.Check().accepted()) << FormatReport(job.Check(), "");
}

TEST_F(FewerRules, MinRanksIsBetweenOneAndAll) {
  for (const int least : {1, 4}) {
    job.spec.mutable_restart()->set_min_ranks(least);
    EXPECT_EQ(Text("RESTART_RANGE"), "") << least;
  }
  job.spec.mutable_restart()->set_min_ranks(0);
  EXPECT_THAT(Text("RESTART_RANGE"), StartsWith("restart.min_ranks: 0"));
  job.spec.mutable_restart()->set_min_ranks(5);
  EXPECT_THAT(Text("RESTART_RANGE"), HasSubstr("5 (from 1 to resources.gpus = 4)"));
}

TEST_F(FewerRules, ANumberFromThereOnSharesTheBatch) {
  job.spec.mutable_restart()->set_min_ranks(3);
  EXPECT_EQ(Text("MIN_RANKS_NOT_DIVISIBLE"),
            "restart.min_ranks: 3 (no number of ranks from there to 3 shares a batch of 8 "
            "sequences); set it to 2, or remove it");
  EXPECT_FALSE(job.Check().accepted());
  job.spec.mutable_train()->set_batch_size(12);
  EXPECT_EQ(Text("MIN_RANKS_NOT_DIVISIBLE"), "") << "three ranks of four sequences";
  job.spec.mutable_restart()->set_min_ranks(4);
  EXPECT_EQ(Text("MIN_RANKS_NOT_DIVISIBLE"), "") << "all of them";
}

TEST_F(FewerRules, RanksThatShareASequenceStayTogether) {
  job.spec.mutable_resources()->set_context_parallel(2);
  EXPECT_EQ(Text("MIN_RANKS_NOT_DIVISIBLE"), "") << "two ranks with one sequence after the other";
  job.spec.mutable_restart()->set_min_ranks(3);
  EXPECT_THAT(Text("MIN_RANKS_NOT_DIVISIBLE"), HasSubstr("set it to 2"));
  job.spec.mutable_model()->set_n_kv_groups(4);
  job.spec.mutable_resources()->set_context_parallel(4);
  job.spec.mutable_restart()->set_min_ranks(2);
  EXPECT_THAT(Text("MIN_RANKS_NOT_DIVISIBLE"), HasSubstr("remove it, or change train.batch_size"));
}

TEST_F(FewerRules, TheMachinesNeedRoomForTheFewestOnly) {
  job.machine.gpus.resize(2);
  EXPECT_EQ(Text("GPU_COUNT"), "");
  job.machine.gpus.resize(1);
  EXPECT_THAT(Text("GPU_COUNT"), HasSubstr("4 on one machine (it has 1)"));
  job.machine.gpus.resize(2, job.machine.gpus[0]);
  job.context.job_id = "jabout2start";
  EXPECT_THAT(Text("GPU_COUNT"), HasSubstr("4 on one machine (it has 2)")) << "placed with all";
}

TEST_F(FewerRules, SoDoCpuSlots) {
  job.MoveToCpu();
  job.machine.cpu_slots = 2;
  EXPECT_EQ(Text("CPU_SLOTS"), "");
  job.spec.mutable_restart()->clear_min_ranks();
  EXPECT_THAT(Text("CPU_SLOTS"), HasSubstr("4 CPU ranks on one machine"));
}

TEST_F(FewerRules, EachOfTheFewestRanksFitsIntoItsMemory) {
  job.spec.mutable_train()->set_batch_size(64);
  const auto bytes = [&](int ranks) {
    v1::JobSpec spec = job.Check().spec();
    spec.mutable_resources()->set_gpus(ranks);
    return TotalBytes(MemoryEstimate(spec, Recompute::kBlock));
  };
  ASSERT_LT(bytes(4), bytes(2));
  job.spec.mutable_restart()->set_min_ranks(1);
  ASSERT_LT(bytes(2), bytes(1));
  for (MachineView::Gpu& gpu : job.machine.gpus) gpu.memory_bytes = bytes(2);
  EXPECT_THAT(Text("MIN_RANKS_MEMORY"), HasSubstr("restart.min_ranks: 1: "));
  EXPECT_THAT(Text("MIN_RANKS_MEMORY"), HasSubstr("set it to 2, or make the job smaller"));
  EXPECT_FALSE(job.Check().accepted());
  for (MachineView::Gpu& gpu : job.machine.gpus) gpu.memory_bytes = bytes(1);
  EXPECT_EQ(Text("MIN_RANKS_MEMORY"), "");
}

}  // namespace
}  // namespace nsa
