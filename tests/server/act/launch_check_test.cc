#include "server/act/launch_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/load.h"
#include "nsa/v1/checkpoint.pb.h"
#include "server/decide/scheduler.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

void AddGpu(const std::string& uuid, int64_t free_bytes, v1::NodeInfo* info) {
  v1::GpuInfo* gpu = info->add_gpus();
  gpu->set_uuid(uuid);
  gpu->set_name("NVIDIA A100-SXM4-80GB");
  gpu->set_memory_bytes(80 * kGiB);
  gpu->set_free_bytes(free_bytes);
  gpu->set_compute_capability(80);
}

v1::NodeInfo Machine() {
  v1::NodeInfo info;
  info.set_name("vm");
  info.set_cpu_slots(2);
  info.set_cores(8);
  info.set_memory_bytes(64 * kGiB);
  info.set_free_memory_bytes(60 * kGiB);
  info.set_cuda_worker(true);
  info.set_driver_version("580.1");
  return info;
}

v1::StoredJob PlacedOn(const std::string& uuid, const TempDir& dir) {
  v1::StoredJob job;
  job.mutable_job()->set_id("j1");
  job.mutable_job()->set_state(v1::Job::STATE_PREFLIGHT);
  *job.mutable_job()->mutable_spec() = TinyJob("demo", dir / "out");
  v1::RuntimeSpec* runtime = job.mutable_job()->mutable_spec()->mutable_runtime();
  runtime->set_device(v1::DEVICE_CUDA);
  runtime->set_precision(v1::PRECISION_BF16);
  v1::RankPlacement* place = job.add_placements();
  place->set_node("vm");
  place->set_cuda_device(uuid);
  return job;
}

TEST(FreeSlots, TheEmptiestGpuComesFirst) {
  const TempDir dir;
  v1::NodeInfo info = Machine();
  AddGpu("GPU-notebook", 9 * kGiB, &info);
  AddGpu("GPU-a", 79 * kGiB + 1, &info);
  AddGpu("GPU-job", 79 * kGiB, &info);
  AddGpu("GPU-b", 79 * kGiB + 2, &info);
  const auto job = std::make_shared<const v1::StoredJob>(PlacedOn("GPU-job", dir));
  const NodeSlots slots = FreeSlots(info, SlotsHeld({job}));
  EXPECT_THAT(slots.gpus_free, ElementsAre("GPU-a", "GPU-b", "GPU-notebook"));
  EXPECT_EQ(slots.gpus_total, 4);
}

// A machine named vm, whose heartbeat a test can change.
class CheckLaunchTest : public ::testing::Test {
 protected:
  CheckLaunchTest() {
    heartbeat_.set_incarnation("first");
    *heartbeat_.mutable_node() = Machine();
  }

  // Sends the heartbeat.
  void Beat() { ASSERT_TRUE(fleet_.Observe(heartbeat_).ok()); }
  LaunchCheck Check(const v1::StoredJob& job) {
    return CheckLaunch(job, fleet_, paths_, WorkBudget(clock_, kLaunchWork, nullptr));
  }

  const TempDir dir_;
  const FakeClock clock_;
  Fleet fleet_{clock_, {}};
  const PathGuard paths_{{"/"}};
  v1::HeartbeatRequest heartbeat_;
};

TEST_F(CheckLaunchTest, LooksAtTheMemoryOfTheGpusThatTheJobWasPlacedOn) {
  AddGpu("GPU-notebook", kGiB / 64, heartbeat_.mutable_node());
  AddGpu("GPU-a", 79 * kGiB, heartbeat_.mutable_node());
  Beat();
  const LaunchCheck empty = Check(PlacedOn("GPU-a", dir_));
  EXPECT_TRUE(empty.accepted) << empty.problem;
  EXPECT_EQ(empty.nodes, "vm");
  const LaunchCheck full = Check(PlacedOn("GPU-notebook", dir_));
  EXPECT_FALSE(full.accepted);
  EXPECT_THAT(full.problem, HasSubstr("vm: MEMORY_ESTIMATE_EXCEEDED: "));
  EXPECT_TRUE(full.passing) << "somebody else uses it now";

  heartbeat_.mutable_node()->mutable_gpus(0)->set_memory_bytes(kGiB / 64);
  Beat();
  EXPECT_FALSE(Check(PlacedOn("GPU-notebook", dir_)).passing) << "too small";
}

TEST_F(CheckLaunchTest, WhatPassesIsToldFromWhatStays) {
  AddGpu("GPU-a", 79 * kGiB, heartbeat_.mutable_node());
  Beat();
  const v1::StoredJob job = PlacedOn("GPU-a", dir_);
  EXPECT_FALSE(Check(job).passing) << "nothing refuses";
  std::ofstream(dir_ / "out") << "in the way";
  EXPECT_TRUE(Check(job).passing);
  heartbeat_.mutable_node()->set_driver_version("535.1");
  Beat();
  const LaunchCheck both = Check(job);
  EXPECT_FALSE(both.passing);
  EXPECT_THAT(both.problem, HasSubstr("GPU_DRIVER")) << "what stays is reported";
  std::filesystem::remove(dir_ / "out");
  std::filesystem::create_directory(dir_ / "elsewhere");
  std::filesystem::create_directory_symlink(dir_ / "elsewhere", dir_ / "out");
  EXPECT_FALSE(Check(job).passing) << "a link is nothing to wait for";
}

TEST_F(CheckLaunchTest, OnlyARestartContinuesWhateverRestartResumeIs) {
  AddGpu("GPU-a", 79 * kGiB, heartbeat_.mutable_node());
  Beat();
  v1::StoredJob job = PlacedOn("GPU-a", dir_);
  v1::CheckpointState state;
  state.set_format_version(1);
  state.set_step(1);
  *state.mutable_spec() = job.job().spec();
  state.set_job_hash(JobHash(job.job().spec()));
  const auto checkpoint = CheckpointsDir(dir_ / "out") / CheckpointName(1);
  std::filesystem::create_directories(checkpoint);
  std::ofstream(checkpoint / "state.json") << *SerializeCheckpointState(state);
  job.mutable_job()->mutable_spec()->mutable_restart()->set_resume("never");
  EXPECT_THAT(Check(job).problem, HasSubstr("OUT_DIR_NOT_EMPTY: "));
  job.mutable_job()->set_generation(1);
  EXPECT_TRUE(Check(job).accepted) << Check(job).problem;
}

TEST_F(CheckLaunchTest, RefusesAJobOfSeveralMachinesOnOneWithoutRankAddressForGood) {
  AddGpu("GPU-a", 79 * kGiB, heartbeat_.mutable_node());
  Beat();
  v1::StoredJob job = PlacedOn("GPU-a", dir_);
  *job.add_placements() = job.placements(0);
  job.mutable_placements(1)->set_rank(1);
  job.mutable_job()->mutable_spec()->mutable_resources()->set_gpus(2);
  job.mutable_job()->mutable_spec()->mutable_resources()->set_nodes(2);
  const LaunchCheck check = Check(job);
  EXPECT_FALSE(check.accepted);
  EXPECT_FALSE(check.passing);
  EXPECT_THAT(check.problem, HasSubstr("RANK_ADDRESS_MISSING: "));
  heartbeat_.mutable_node()->set_rank_address("10.0.0.2");
  Beat();
  EXPECT_THAT(Check(job).problem, Not(HasSubstr("RANK_ADDRESS_MISSING")));
}

}  // namespace
}  // namespace nsa::server
