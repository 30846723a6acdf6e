// What preflight says about the machine that a job meets: device, memory, GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "common/estimate/estimate.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/shares.h"
#include "common/preflight/preflight.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Preflight, EachOfSeveralMachinesNeedsSlotsForItsOwnRanksOnly) {
  GoodJob job;
  job.machine.rank_address = "10.0.0.2";
  job.spec.mutable_resources()->set_gpus(2);
  EXPECT_NE(FindingOf(job.Check(), "GPU_COUNT"), nullptr) << "the machine has one GPU";
  job.spec.mutable_resources()->set_nodes(2);
  EXPECT_EQ(FindingOf(job.Check(), "GPU_COUNT"), nullptr);
  EXPECT_EQ(FindingOf(job.Check(), "RANK_ADDRESS_MISSING"), nullptr);
  job.spec.mutable_resources()->set_gpus(3);
  EXPECT_NE(FindingOf(job.Check(), "GPU_COUNT"), nullptr) << "one of the two has two ranks";
}

TEST(Preflight, SeveralMachinesWithoutAnyKnownMachineAreNoProblem) {
  GoodJob job;
  job.spec.mutable_resources()->set_gpus(2);
  job.spec.mutable_resources()->set_nodes(2);
  job.context.machine = nullptr;
  EXPECT_EQ(FindingOf(job.Check(), "RANK_ADDRESS_MISSING"), nullptr);
}

TEST(Preflight, TheDiskHoldsTheKeptCheckpointsAndOneMore) {
  GoodJob job;
  Train(&job)->set_keep_checkpoints(3);
  const int64_t needed = 4 * CheckpointBytes(job.Check().spec());
  job.free_disk_bytes = needed;
  EXPECT_EQ(FindingOf(job.Check(), "DISK_TOO_SMALL"), nullptr);
  job.free_disk_bytes = needed - 1;
  const v1::PreflightReport report = job.Check();
  ASSERT_NE(FindingOf(report, "DISK_TOO_SMALL"), nullptr);
  EXPECT_THAT(FindingOf(report, "DISK_TOO_SMALL")->problem(), HasSubstr("for 4 checkpoints of"));
  EXPECT_FALSE(report.accepted());
  job.spec.mutable_resources()->set_gpus(2);
  EXPECT_THAT(FindingOf(job.Check(), "DISK_TOO_SMALL")->problem(),
              HasSubstr(" and what ranks hand over to rank 0)"));
  job.spec.mutable_resources()->set_gpus(1);
  job.free_disk_bytes = std::nullopt;
  EXPECT_TRUE(job.Check().accepted()) << "nothing is known of this disk";
}

TEST(Preflight, AsksTheFileSystemWhatIsFree) {
  GoodJob job;
  job.context.free_disk_bytes = nullptr;
  Train(&job)->set_keep_checkpoints(1'000'000'000);
  EXPECT_NE(FindingOf(job.Check(), "DISK_TOO_SMALL"), nullptr) << "no disk is that large";
}

TEST(Preflight, AnOldDriverIsToldWhatToInstallForItsBranch) {
  GoodJob job;
  const auto fix = [&](const char* version) {
    job.machine.driver_version = version;
    const v1::PreflightReport report = job.Check();
    const v1::Finding* finding = FindingOf(report, "GPU_DRIVER");
    return finding == nullptr ? std::string() : finding->fix();
  };
  EXPECT_THAT(fix("535.86.10"), HasSubstr("package cuda-compat-13-0"));
  EXPECT_THAT(fix("555.42.06"), HasSubstr("does not serve), or move to R535"));
  EXPECT_THAT(fix("550.54.15"), HasSubstr("may serve R550"));
  EXPECT_EQ(fix("580.65.06"), "");
  job.machine.cuda_compat_path = "/usr/local/cuda-13.0/compat";
  EXPECT_EQ(fix("535.86.10"), "") << "its CUDA worker runs with the package";
}

TEST(Preflight, JudgesAnOpenDeviceByWhatTheMachineHas) {
  GoodJob job;
  job.spec.mutable_runtime()->set_device(v1::DEVICE_AUTO);
  job.spec.mutable_runtime()->set_precision(v1::PRECISION_FP32);
  EXPECT_NE(FindingOf(job.Check(), "PRECISION_NOT_BF16"), nullptr);
  job.machine.gpus.clear();
  EXPECT_EQ(FindingOf(job.Check(), "PRECISION_NOT_BF16"), nullptr);
}

TEST(Preflight, JudgesAnOpenDeviceWithoutAMachineAsCpuUnlessTheJobAsksForGpus) {
  GoodJob job;
  job.context.machine = nullptr;
  v1::RuntimeSpec* runtime = job.spec.mutable_runtime();
  runtime->set_device(v1::DEVICE_AUTO);
  runtime->set_gradient_checkpointing(false);  // refused on a GPU only
  const auto on_gpu = [&] {
    return FindingOf(job.Check(), "GRADIENT_CHECKPOINTING_OFF") != nullptr;
  };
  runtime->set_precision(v1::PRECISION_FP32);
  EXPECT_FALSE(on_gpu());
  EXPECT_EQ(FindingOf(job.Check(), "PRECISION_NOT_BF16"), nullptr);
  runtime->set_precision(v1::PRECISION_UNSPECIFIED);
  EXPECT_FALSE(on_gpu());
  runtime->set_precision(v1::PRECISION_BF16);
  EXPECT_TRUE(on_gpu());
  EXPECT_EQ(FindingOf(job.Check(), "CPU_BF16"), nullptr);
  runtime->set_precision(v1::PRECISION_UNSPECIFIED);
  job.spec.mutable_resources()->set_gpus(2);
  EXPECT_TRUE(on_gpu());
}

TEST(Preflight, NamesUpToThreeSettingsThatWouldFitTheMemory) {
  GoodJob job;
  job.spec.mutable_runtime()->set_gradient_checkpointing(false);
  Train(&job)->set_batch_size(16);
  job.machine.gpus[0].memory_bytes = int64_t{12} << 30;
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, "MEMORY_ESTIMATE_EXCEEDED");
  ASSERT_NE(finding, nullptr) << FormatReport(report, "");
  EXPECT_THAT(finding->fix(), HasSubstr("gradient_checkpointing: true"));
  EXPECT_THAT(finding->fix(), HasSubstr("batch_size: 8 with accumulate_grad_batches: 2"));
  EXPECT_THAT(finding->fix(), HasSubstr("seq_len: 1024"));
  EXPECT_THAT(finding->problem(), HasSubstr("activations"));
}

TEST(Preflight, ExpectsThatWhatDoesNotFitIsRecomputed) {
  GoodJob job;
  Train(&job)->set_batch_size(16);
  const auto activations = [&job](int64_t gib) {
    job.machine.gpus[0].memory_bytes = gib << 30;
    const v1::PreflightReport report = job.Check();
    EXPECT_EQ(FindingOf(report, "MEMORY_ESTIMATE_EXCEEDED"), nullptr) << FormatReport(report, "");
    for (const v1::EstimateItem& estimate : report.estimates()) {
      if (estimate.name().starts_with("memory: activations")) return estimate.name();
    }
    return std::string("none");
  };
  EXPECT_EQ(activations(80), "memory: activations");
  EXPECT_EQ(activations(14), "memory: activations, norms recomputed");
  EXPECT_EQ(activations(11), "memory: activations, MLP recomputed");
  EXPECT_EQ(activations(6), "memory: activations, recomputed by block");
}

// A job with a rank on each GPU of its machine.
class Levels : public ::testing::Test {
 protected:
  std::string Fix(int ranks, v1::Shard shard) {
    Divide(ranks, shard);
    SetMemory(Needed() - (1 << 20));
    const v1::PreflightReport report = job.Check();
    const v1::Finding* finding = FindingOf(report, "MEMORY_ESTIMATE_EXCEEDED");
    return finding == nullptr ? std::string("none") : finding->fix();
  }
  void Divide(int ranks, v1::Shard shard) {
    job.machine.gpus.resize(ranks, job.machine.gpus[0]);
    job.spec.mutable_resources()->set_gpus(ranks);
    Train(&job)->set_batch_size(2 * ranks);
    SetShard(shard, &job.spec);
  }
  int64_t Needed() { return TotalBytes(MemoryEstimate(job.Check().spec(), Recompute::kBlock)); }
  void SetMemory(int64_t bytes) {
    for (MachineView::Gpu& gpu : job.machine.gpus) gpu.memory_bytes = bytes;
  }

  GoodJob job;
};

TEST_F(Levels, TheFirstThatFitsIsNamed) {
  EXPECT_THAT(Fix(2, v1::SHARD_NONE), HasSubstr("runtime.shard: optimizer"));
  EXPECT_THAT(Fix(2, v1::SHARD_OPTIMIZER), HasSubstr("runtime.shard: gradients"));
  EXPECT_THAT(Fix(2, v1::SHARD_GRADIENTS), HasSubstr("runtime.shard: parameters"));
  EXPECT_THAT(Fix(2, v1::SHARD_PARAMETERS), Not(HasSubstr("runtime.shard")));
  EXPECT_THAT(Fix(1, v1::SHARD_NONE), Not(HasSubstr("shard"))) << "there is nothing to divide";
  Divide(4, v1::SHARD_OPTIMIZER);
  const int64_t optimizer = Needed();
  Divide(4, v1::SHARD_NONE);
  SetMemory(optimizer - (1 << 20));
  const v1::PreflightReport report = job.Check();
  const v1::Finding* const finding = FindingOf(report, "MEMORY_ESTIMATE_EXCEEDED");
  ASSERT_NE(finding, nullptr);
  EXPECT_THAT(finding->fix(), HasSubstr("runtime.shard: gradients"));
}

TEST_F(Levels, OneThatFitsOnlyWithRecomputationIsNamedWithIt) {
  Divide(2, v1::SHARD_GRADIENTS);
  const int64_t needed = Needed();
  Divide(2, v1::SHARD_NONE);
  job.spec.mutable_runtime()->set_gradient_checkpointing(false);
  SetMemory(needed);
  const v1::PreflightReport report = job.Check();
  const v1::Finding* const finding = FindingOf(report, "MEMORY_ESTIMATE_EXCEEDED");
  ASSERT_NE(finding, nullptr);
  EXPECT_THAT(finding->fix(),
              HasSubstr("runtime.shard: gradients with gradient_checkpointing: true"));
}

TEST_F(Levels, AutoIsJudgedAsTheFirstThatFits) {
  Divide(4, v1::SHARD_OPTIMIZER);
  const int64_t optimizer = Needed();
  Divide(4, v1::SHARD_AUTO);
  const auto windows = [this] {
    const v1::PreflightReport report = job.Check();
    EXPECT_EQ(FindingOf(report, "MEMORY_ESTIMATE_EXCEEDED"), nullptr);
    EXPECT_EQ(report.spec().runtime().shard(), v1::SHARD_AUTO) << "decided when it is placed";
    return std::ranges::count(report.estimates(), "memory: gradients on their way",
                              &v1::EstimateItem::name);
  };
  EXPECT_EQ(windows(), 0);
  SetMemory(optimizer - (1 << 20));
  EXPECT_EQ(windows(), 1);
}

TEST_F(Levels, EachIsForBothDevices) {
  for (const bool cuda : {true, false}) {
    Divide(2, v1::SHARD_PARAMETERS);
    if (!cuda) job.MoveToCpu();
    EXPECT_EQ(FindingOf(job.Check(), "SHARD_INVALID"), nullptr);
  }
}

TEST_F(Levels, ParametersOfAJobThatWritesSamplesAreRefusedAndNotAdvised) {
  job.spec.mutable_sample()->add_prompts("To be");
  Divide(2, v1::SHARD_PARAMETERS);
  const v1::PreflightReport report = job.Check();
  const v1::Finding* const finding = FindingOf(report, "SHARD_INVALID");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->problem(),
            "parameters with sample.prompts (none, optimizer, gradients or auto)");
  EXPECT_EQ(finding->fix(), "set shard: gradients");
  EXPECT_THAT(Fix(2, v1::SHARD_GRADIENTS), Not(HasSubstr("runtime.shard")));
}

TEST_F(Levels, GradientsOfATiedModelAreRefusedAndNotAdvised) {
  job.spec.mutable_model()->set_tie_embeddings(true);
  Divide(2, v1::SHARD_GRADIENTS);
  const v1::PreflightReport report = job.Check();
  const v1::Finding* const finding = FindingOf(report, "SHARD_INVALID");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->field(), "runtime.shard");
  EXPECT_EQ(finding->problem(), "gradients with model.tie_embeddings (none, optimizer or auto)");
  EXPECT_EQ(finding->fix(), "set shard: optimizer");
  for (const v1::Shard shard : {v1::SHARD_NONE, v1::SHARD_OPTIMIZER, v1::SHARD_AUTO}) {
    Divide(2, shard);
    EXPECT_EQ(FindingOf(job.Check(), "SHARD_INVALID"), nullptr) << ShardName(shard);
  }
  EXPECT_THAT(Fix(2, v1::SHARD_OPTIMIZER), Not(HasSubstr("runtime.shard")));
}

TEST_F(Levels, TheOlderNameMayStandBesideWhatItMeans) {
  Divide(2, v1::SHARD_OPTIMIZER);
  job.spec.mutable_runtime()->set_shard_optimizer(true);
  EXPECT_EQ(FindingOf(job.Check(), "SHARD_INVALID"), nullptr);
  job.spec.mutable_runtime()->set_shard_optimizer(false);
  EXPECT_NE(FindingOf(job.Check(), "SHARD_INVALID"), nullptr);
  job.spec.mutable_runtime()->set_shard(v1::SHARD_NONE);
  EXPECT_EQ(FindingOf(job.Check(), "SHARD_INVALID"), nullptr);
}

TEST(Preflight, CountsAllMemoryForAJobThatMayWaitAndFreeMemoryForOneThatStarts) {
  GoodJob job;
  job.machine.gpus[0].free_bytes = int64_t{1} << 30;  // taken by another job
  EXPECT_EQ(FindingOf(job.Check(), "MEMORY_ESTIMATE_EXCEEDED"), nullptr);
  job.context.job_id = "jmine";
  EXPECT_NE(FindingOf(job.Check(), "MEMORY_ESTIMATE_EXCEEDED"), nullptr);
}

// Every rank holds the whole corpus.
TEST(Preflight, CountsTheCorpusOfEveryRankAndTheTextOfCompressedFiles) {
  GoodJob job;
  job.spec.mutable_resources()->set_gpus(2);
  job.machine.gpus.push_back(job.machine.gpus[0]);
  job.machine.memory_bytes = 49 << 20;
  EXPECT_EQ(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED")->field(), "resources.gpus")
      << "the text fits";
  job.machine.memory_bytes = 48 << 20;
  EXPECT_EQ(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED")->field(), "data.path");
  job.Write("train.txt.zst", std::string(4 << 20, 'a'));
  Data(&job)->set_path(0, job.PathOf("train.txt.zst"));
  EXPECT_THAT(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED")->problem(),
              HasSubstr("about 72.38 MiB of host memory"));
  // What the file says counts if it is more: 64 MiB in the header of a frame.
  const std::string frame("\x28\xb5\x2f\xfd\xa4\x00\x00\x00\x04", 9);
  job.Write("train.txt.zst", frame + std::string((4 << 20) - 9, 'a'));
  EXPECT_THAT(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED")->problem(),
              HasSubstr("about 384.38 MiB of host memory"));
  // But no rank holds more than 64 times its files and 256 MiB, whatever they say.
  const std::string most("\x28\xb5\x2f\xfd\xe4\x00\x00\x00\x00\x00\x01\x00\x00", 13);
  job.Write("train.txt.zst", most + std::string((4 << 20) - 13, 'a'));
  EXPECT_THAT(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED")->problem(),
              HasSubstr("about 3.02 GiB of host memory"));
}

// The ranks of each machine have all of its cores.
TEST(Preflight, AJobOfSeveralMachinesHasTheCoresOfAll) {
  GoodJob job;
  job.MoveToCpu();
  job.spec.mutable_resources()->set_gpus(2);
  const auto speed = [&](int nodes) {
    job.spec.mutable_resources()->set_nodes(nodes);
    const v1::PreflightReport report = job.Check();
    for (const v1::EstimateItem& item : report.estimates()) {
      if (absl::StartsWith(item.name(), "expected speed"))
        return std::pair(item.name(), item.value());
    }
    return std::pair(std::string(), 0.0);
  };
  const auto [one, on_one] = speed(1);
  const auto [two, on_two] = speed(2);
  EXPECT_GT(on_one, 0);
  EXPECT_NEAR(on_two / on_one, 2, 0.2);
  EXPECT_THAT(one, HasSubstr("2 CPU cores"));
  EXPECT_THAT(two, HasSubstr("4 CPU cores"));
}

// All ranks of a machine together, whatever they divide.
TEST(Preflight, CountsTheCopiesWithWhichRanksOnGpusStartAndWriteCheckpoints) {
  GoodJob job;
  job.context.check_files = false;  // there is no text
  Train(&job)->set_batch_size(8);
  job.machine.gpus.assign(4, job.machine.gpus[0]);
  int64_t needed = 0;
  for (const int gpus : {1, 2, 4}) {
    job.spec.mutable_resources()->set_gpus(gpus);
    for (const v1::Shard shard : {v1::SHARD_NONE, v1::SHARD_PARAMETERS}) {
      SetShard(shard, &job.spec);
      // Without shares each rank starts with copies of everything.
      const int64_t parameters = ParameterCount(job.spec);
      const bool shares = shard == v1::SHARD_PARAMETERS && gpus > 1;
      needed = StartBytes(job.spec, gpus);
      EXPECT_NEAR(needed, 14 * parameters * (shares ? 1 : gpus), shares ? parameters : 0);
      EXPECT_GT(needed, SnapshotBytes(job.spec, gpus));
      job.machine.memory_bytes = needed;
      EXPECT_EQ(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED"), nullptr) << gpus;
      job.machine.memory_bytes = needed - 1;
      EXPECT_NE(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED"), nullptr) << gpus;
    }
  }
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, "HOST_MEMORY_EXCEEDED");
  EXPECT_EQ(finding->field(), "resources.gpus");
  EXPECT_THAT(finding->problem(),
              AllOf(HasSubstr("of host memory for the copies with which 4 ranks start and write "
                              "checkpoints"),
                    HasSubstr(" (at most "), Not(HasSubstr("text"))));
  EXPECT_THAT(finding->fix(), HasSubstr("among more machines"));
  EXPECT_FALSE(report.accepted());
  job.spec.mutable_resources()->set_nodes(2);
  job.machine.memory_bytes = needed / 2;
  EXPECT_EQ(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED"), nullptr);
  job.machine.memory_bytes = 0;
  EXPECT_EQ(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED"), nullptr) << "not known";
}

TEST(Preflight, AddsTheTextToTheCopiesWithWhichRanksStart) {
  GoodJob job;
  const int64_t copies = StartBytes(job.Check().spec(), 1);
  const int64_t text = 6 * ((4 << 20) + (1 << 16));
  job.machine.memory_bytes = copies + text;
  EXPECT_EQ(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED"), nullptr);
  --job.machine.memory_bytes;
  EXPECT_THAT(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED")->problem(),
              HasSubstr("1 rank starts and writes checkpoints, and 24.38 MiB for their text"));
}

TEST(Preflight, ShowsTheHostMemoryOfARankOnAGpu) {
  GoodJob job;
  const auto shown = [&] {
    const v1::PreflightReport report = job.Check();
    for (const v1::EstimateItem& item : report.estimates()) {
      if (item.name() == "host memory for checkpoints, per rank") return item.value();
    }
    return 0.0;
  };
  EXPECT_EQ(shown(), static_cast<double>(SnapshotBytes(job.Check().spec(), 1)));
  job.MoveToCpu();
  EXPECT_EQ(shown(), 0) << "it is part of the memory of the rank";
}

// Large data is mapped from the cache of the workers, if it fits into that.
TEST(Preflight, DoesNotCountLargeDataThatIsMapped) {
  GoodJob job;
  const auto need = [&](int64_t bytes) {
    std::filesystem::resize_file(job.PathOf("train.txt"), static_cast<uintmax_t>(bytes));
    const v1::PreflightReport report = job.Check();
    for (const v1::EstimateItem& item : report.estimates()) {
      if (item.name() == "host memory for the text, per rank") return item.value();
    }
    return 0.0;
  };
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_NEAR(need(63 * kMiB), 6.0 * 63 * kMiB, kMiB);
  EXPECT_NEAR(need(65 * kMiB), 6.0 * 64 * kMiB, kMiB);
  EXPECT_NEAR(need(9000 * kMiB), 6.0 * 64 * kMiB, kMiB);
  EXPECT_NEAR(need(11'000 * kMiB), 6.0 * 11'000 * kMiB, 10 * kMiB);  // one byte a token
}

// A rank that reads its data in passing holds a window, whatever the size of the data.
TEST(Preflight, CountsTheWindowOfAStream) {
  GoodJob job;
  Data(&job)->set_stream(true);
  const auto need = [&](int32_t window, int64_t bytes) {
    Data(&job)->set_shuffle_window(window);
    std::filesystem::resize_file(job.PathOf("train.txt"), static_cast<uintmax_t>(bytes));
    const v1::PreflightReport report = job.Check();
    for (const v1::EstimateItem& item : report.estimates()) {
      if (item.name() == "host memory for the text, per rank") return item.value();
    }
    return 0.0;
  };
  constexpr int64_t kMiB = 1 << 20;
  // A byte a token, and 100 for the row's places.
  const double row = job.spec.train().seq_len() + 1.0 + 100;
  const double small = need(1, 4 * kMiB);
  EXPECT_LT(small, 32 * kMiB);
  EXPECT_NEAR(need(8193, 4 * kMiB), small + 8192 * row, 1);
  EXPECT_EQ(need(1, 11'000 * kMiB), small);
  job.context.check_files = false;
  EXPECT_NEAR(need(8193, 4 * kMiB), need(1, 4 * kMiB) + 8192 * row, 1) << "also without the files";
  job.context.check_files = true;
  job.machine.memory_bytes = 900 * kMiB;
  need(1'000'000, 4 * kMiB);
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, "HOST_MEMORY_EXCEEDED");
  ASSERT_NE(finding, nullptr);
  EXPECT_THAT(finding->problem(), HasSubstr("of host memory for the window"));
  EXPECT_THAT(finding->fix(), HasSubstr("a smaller data.shuffle_window"));
}

TEST(Preflight, WaitsForHostMemoryThatOthersUse) {
  GoodJob job;
  job.context.job_id = "jmine";
  job.machine.free_memory_bytes = 1 << 20;
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, "HOST_MEMORY_EXCEEDED");
  ASSERT_NE(finding, nullptr);
  EXPECT_TRUE(MayPassLater(*finding, job.spec, job.machine));
}

TEST(Preflight, CountsTheCorpusInTheMemoryOfARankOnTheCpu) {
  GoodJob job;
  job.MoveToCpu();
  const auto memory = [&] {
    const v1::PreflightReport report = job.Check();
    for (const v1::EstimateItem& item : report.estimates()) {
      if (item.name() == "memory per rank") return item.value();
    }
    return 0.0;
  };
  const double all = memory();
  job.context.check_files = false;
  EXPECT_EQ(all - memory(), 6.0 * ((4 << 20) + (1 << 16)));
  job.context.check_files = true;
  job.machine.memory_bytes = static_cast<int64_t>(all) - 1;
  EXPECT_THAT(FindingOf(job.Check(), "MEMORY_ESTIMATE_EXCEEDED")->problem(), HasSubstr("corpus "));
}

TEST(Preflight, ATextThatDoesNotFitOnTheCpuIsNoFaultOfTheModel) {
  GoodJob job;
  job.MoveToCpu();
  job.machine.memory_bytes = 24 << 20;  // the text alone takes 24.38 MiB
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, "HOST_MEMORY_EXCEEDED");
  ASSERT_NE(finding, nullptr);
  EXPECT_THAT(finding->fix(), HasSubstr("stream the data"));
  EXPECT_EQ(FindingOf(report, "MEMORY_ESTIMATE_EXCEEDED"), nullptr);
}

TEST(Preflight, RefusesWideHeadsWhereSharedMemoryIsSmall) {
  for (const int32_t capability : {80, 86, 89, 90, 100, 120}) {
    GoodJob job;
    job.machine.gpus[0] = {"NVIDIA L40S", int64_t{141} << 30, int64_t{139} << 30, capability};
    EXPECT_EQ(FindingOf(job.Check(), "GPU_CAPABILITY"), nullptr) << capability << ", heads of 64";
    job.spec.mutable_model()->set_d_v(128);
    const v1::PreflightReport report = job.Check();
    const v1::Finding* finding = FindingOf(report, "GPU_CAPABILITY");
    ASSERT_EQ(finding != nullptr, capability % 10 != 0 || capability == 120) << capability;
    if (finding == nullptr) continue;
    EXPECT_EQ(finding->field(), "model.d_v");
    EXPECT_THAT(finding->problem(), HasSubstr("128 (at most 64 on NVIDIA L40S"));
    job.spec.mutable_model()->set_d_k(192);
    const v1::PreflightReport of_keys = job.Check();
    finding = FindingOf(of_keys, "GPU_CAPABILITY");
    ASSERT_NE(finding, nullptr) << capability;
    EXPECT_EQ(finding->field(), "model.d_k");
    EXPECT_THAT(finding->problem(), HasSubstr("192 (at most 64 on NVIDIA L40S"));
  }
}

TEST(Preflight, KnowsWhichRefusalsMayPassLater) {
  GoodJob job;
  job.context.job_id = "jmine";
  const auto may_pass = [&](const char* rule) {
    const v1::PreflightReport report = job.Check();
    const v1::Finding* finding = FindingOf(report, rule);
    EXPECT_NE(finding, nullptr) << rule;
    return finding != nullptr && MayPassLater(*finding, job.spec, job.machine);
  };
  job.machine.cuda_worker = false;
  EXPECT_TRUE(may_pass("GPU_UNAVAILABLE"));
  job.machine.driver_version = "535.1";
  EXPECT_FALSE(may_pass("GPU_DRIVER"));
  job.machine.gpus[0].free_bytes = int64_t{1} << 30;
  EXPECT_TRUE(may_pass("MEMORY_ESTIMATE_EXCEEDED")) << "others use it now";
  job.machine.gpus[0].memory_bytes = int64_t{1} << 30;
  EXPECT_FALSE(may_pass("MEMORY_ESTIMATE_EXCEEDED")) << "there is no more of it";
}

}  // namespace
}  // namespace nsa
