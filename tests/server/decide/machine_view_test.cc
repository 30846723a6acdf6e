#include "server/decide/machine_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/server/tiny_job.h"

namespace nsa::server {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

MachineView Cpu(int slots, int64_t memory) {
  return {.cpu_slots = slots, .cores = 4, .memory_bytes = memory, .free_memory_bytes = memory};
}

TEST(MachineViewOf, LeavesOutAGpuWithAFaultAndNamesIt) {
  v1::NodeInfo info;
  for (const char* uuid : {"GPU-1", "GPU-2"}) {
    info.add_gpus()->set_uuid(uuid);
    info.mutable_gpus()->rbegin()->set_name("NVIDIA A100");
  }
  info.mutable_gpus(0)->set_fault("XID 79: the GPU has fallen off the bus");
  const MachineView view = MachineViewOf(info);
  EXPECT_EQ(view.gpus.size(), 1u);
  ASSERT_EQ(view.gpu_faults.size(), 1u);
  EXPECT_EQ(view.gpu_faults[0],
            "NVIDIA A100 GPU-1 is taken out (XID 79: the GPU has fallen off the bus)");
}

TEST(RanksOnFaultyGpus, NamesRankMachineGpuAndFaultAndNoOtherRank) {
  v1::NodeInfo info;
  for (const char* uuid : {"GPU-1", "GPU-2"}) {
    info.add_gpus()->set_uuid(uuid);
    info.mutable_gpus()->rbegin()->set_name("NVIDIA A100");
  }
  info.mutable_gpus(1)->set_fault("2 uncorrectable memory errors");
  v1::StoredJob job;
  for (int rank = 0; rank < 2; ++rank) {
    v1::RankPlacement& placement = *job.add_placements();
    placement.set_rank(rank);
    placement.set_node("a");
    placement.set_cuda_device(info.gpus(rank).uuid());
  }
  const std::vector<std::string> texts = RanksOnFaultyGpus(job, FaultyGpus(info));
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_THAT(texts[0], testing::StartsWith("rank 1 on a: NVIDIA A100 GPU-2 is taken out (2 "
                                            "uncorrectable memory errors): "));
}

TEST(BestMachine, IsOneOnWhichEveryRulePassesEvenIfAnotherIsLarger) {
  const std::vector<MachineView> machines = {Cpu(1, 512 * kGiB), Cpu(2, 64 * kGiB)};
  const v1::JobSpec job = TinyJob("demo", "/out", /*ranks=*/2);
  EXPECT_EQ(BestMachine(job, machines), &machines[1]);
}

TEST(BestMachine, IsTheLargestOfThoseThatPass) {
  const std::vector<MachineView> machines = {Cpu(2, 64 * kGiB), Cpu(2, 512 * kGiB), Cpu(1, kGiB)};
  EXPECT_EQ(BestMachine(TinyJob("demo", "/out"), machines), &machines[1]);
}

TEST(BestMachine, HasTheFewestErrorsWhereNonePasses) {
  const std::vector<MachineView> machines = {Cpu(1, kGiB / 1024), Cpu(2, 64 * kGiB)};
  const v1::JobSpec job = TinyJob("demo", "/out", /*ranks=*/4);
  EXPECT_EQ(BestMachine(job, machines), &machines[1]);
}

TEST(BestMachine, IsNoneWithoutMachines) {
  EXPECT_EQ(BestMachine(TinyJob("demo", "/out"), {}), nullptr);
}

}  // namespace
}  // namespace nsa::server
