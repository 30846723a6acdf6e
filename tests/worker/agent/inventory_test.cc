#include "worker/agent/inventory.h"

#include <dlfcn.h>

#include <fstream>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "tests/testing/fakes/fake_nvml.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"
#include "worker/agent/nvml.h"

namespace nsa::agent {
namespace {

using ::testing::HasSubstr;

std::vector<v1::GpuInfo> FourGpus() {
  std::vector<v1::GpuInfo> gpus(4);
  for (size_t i = 0; i < gpus.size(); ++i) {
    gpus[i].set_uuid(absl::StrFormat("GPU-%c0000000-1111", "abcd"[i]));
  }
  return gpus;
}

// The GPUs that stay visible, as letters.
std::string Visible(const char* visible) {
  std::string letters;
  for (const v1::GpuInfo& gpu : VisibleGpus(FourGpus(), visible)) letters.append(gpu.uuid(), 4, 1);
  return letters;
}

TEST(VisibleGpus, ReadsTheVariableAsCudaDoes) {
  EXPECT_EQ(Visible(nullptr), "abcd");
  EXPECT_EQ(Visible("2,0"), "ca");
  EXPECT_EQ(Visible(" 1 , 3 "), "bd");
  EXPECT_EQ(Visible("GPU-b0000000-1111,GPU-d"), "bd");
  EXPECT_EQ(Visible(""), "") << "set and empty: none";
  EXPECT_EQ(Visible("1,7,2"), "b") << "the list ends at the first that is none";
  EXPECT_EQ(Visible("-1"), "");
  EXPECT_EQ(Visible("NoDevFiles"), "");
}

TEST(Inventory, SaysHonestlyThatThereIsNoGpu) {
  if (Nvml::Open() != nullptr) GTEST_SKIP() << "this machine has a GPU";
  const TempDir folder;
  const AgentOptions options = {.node_name = "n", .state_dir = folder.path(), .cpu_slots = 2};
  const Inventory inventory(options);
  const v1::NodeInfo node = inventory.Read();
  EXPECT_EQ(node.gpus_size(), 0);
  EXPECT_FALSE(node.cuda_worker());
  EXPECT_EQ(node.driver_version(), "");
  EXPECT_THAT(node.cuda_problem(), HasSubstr("no NVIDIA driver"));
  EXPECT_EQ(node.cpu_slots(), 2);
}

TEST(Nvml, TellsTheStateOfAGpuAndTakesOutOneWithErrors) {
  if (NvmlIsInstalled()) GTEST_SKIP() << "this machine has a GPU";
  void* library = dlopen(TestFile("fake_nvml.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  FakeNvml* driver = reinterpret_cast<FakeNvmlFunction>(dlsym(library, kFakeNvmlSymbol))();
  {
    const auto nvml = Nvml::Open();
    ASSERT_NE(nvml, nullptr);
    const v1::GpuInfo gpu = nvml->Gpus().at(0);
    EXPECT_EQ(gpu.utilization_ratio(), 0.75);
    EXPECT_EQ(gpu.power_watts(), 412.5);
    EXPECT_EQ(gpu.temperature_celsius(), 61);
    EXPECT_EQ(gpu.memory_clock_hertz(), 1593e6);
    EXPECT_EQ(gpu.uncorrected_errors(), 0);
    EXPECT_EQ(gpu.nvlink_bytes_per_second(), 12 * 25e9);
    EXPECT_NEAR(gpu.pcie_bytes_per_second(), 31.5e9, 0.1e9);
    EXPECT_EQ(gpu.fault(), "");
    driver->lost = true;
    EXPECT_EQ(nvml->Gpus().at(0).fault(), "it no longer answers the driver");
    EXPECT_EQ(nvml->Gpus().at(0).uuid(), "GPU-0");
    EXPECT_FALSE(nvml->Gpus().at(0).has_utilization_ratio()) << "what was measured is over";
    EXPECT_FALSE(nvml->Gpus().at(0).has_power_watts());
    driver->lost = false;
    driver->xid = 31;
    EXPECT_EQ(nvml->Gpus().at(0).xid(), 31);
    EXPECT_EQ(nvml->Gpus().at(0).fault(), "") << "the error of a program";
    driver->xid = 79;
    EXPECT_EQ(nvml->Gpus().at(0).fault(), "XID 79: the GPU has fallen off the bus");
    driver->uncorrected_errors = 2;
    EXPECT_EQ(nvml->Gpus().at(0).fault(),
              "2 uncorrectable memory errors since the driver was loaded");
    driver->uncorrected_errors = 0;
  }
  dlclose(library);
}

TEST(Nvml, ALinkThatIsNotKnownHasNoSpeed) {
  EXPECT_EQ(NvlinkBytesPerSecond(0), 0);
  EXPECT_EQ(NvlinkBytesPerSecond(6), 25e9) << "4.0, of an H100";
  EXPECT_EQ(NvlinkBytesPerSecond(7), 50e9) << "5.0, of a B200";
  EXPECT_EQ(PcieBytesPerSecond(0, 16), 0);
  EXPECT_EQ(PcieBytesPerSecond(9, 16), 0);
}

TEST(Inventory, TheFirstHeartbeatDoesNotWaitForTheDriver) {
  if (Nvml::Open() != nullptr) GTEST_SKIP() << "this machine has a GPU";
  void* library = dlopen(TestFile("fake_nvml.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  FakeNvml* driver = reinterpret_cast<FakeNvmlFunction>(dlsym(library, kFakeNvmlSymbol))();
  const TempDir folder;
  {
    const AgentOptions options = {.node_name = "n",
                                  .state_dir = folder.path(),
                                  .cuda_worker_program = folder / "nsa-worker-cuda"};
    driver->hangs = true;
    const Inventory inventory(options);
    EXPECT_LT(inventory.Read().gpus_age_seconds(), 0) << "the driver has not answered";
    EXPECT_EQ(inventory.Read().gpus_size(), 0);
    driver->hangs = false;
    ASSERT_TRUE(Within(absl::Seconds(60), [&] { return inventory.Read().gpus_size() == 1; }));
    const auto free_bytes = [&] { return inventory.Read().gpus(0).free_bytes(); };
    const auto age = [&] { return inventory.Read().gpus_age_seconds(); };
    EXPECT_EQ(free_bytes(), int64_t{79} << 30);

    driver->hangs = true;
    ASSERT_TRUE(Within(absl::Seconds(60), [&] { return driver->waiting > 0; }));
    driver->free_bytes = 1;
    EXPECT_TRUE(Within(absl::Seconds(60), [&] { return age() > 3; })) << "of the answer before";
    EXPECT_EQ(free_bytes(), int64_t{79} << 30);
    driver->hangs = false;
    EXPECT_TRUE(Within(absl::Seconds(60), [&] { return free_bytes() == 1 && age() < 3; }));
  }
  dlclose(library);
}

TEST(NcclVersion, IsTheWordBehindTheName) {
  EXPECT_EQ(NcclVersion("NCCL 2.28.3 (/usr/lib/libnccl.so.2)"), "2.28.3");
  EXPECT_EQ(NcclVersion("NCCL"), "");
  EXPECT_EQ(NcclVersion(""), "");
  EXPECT_EQ(NcclVersion("warning: something else"), "");
}

void WriteProgram(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
}

TEST(Inventory, TellsWhatMachinesMustHaveInCommon) {
  if (NvmlIsInstalled()) GTEST_SKIP() << "this machine has a GPU";
  void* library = dlopen(TestFile("fake_nvml.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const TempDir folder;
  WriteProgram(folder / "nsa-worker", "#!/bin/sh\n");
  WriteProgram(folder / "nsa-worker-cuda",
               "#!/bin/sh\ncase $1 in --check-nccl) echo 'NCCL 2.28.3 (/x/libnccl.so.2)';; esac\n");
  AgentOptions options = {.node_name = "n",
                          .state_dir = folder.path(),
                          .worker_program = folder / "nsa-worker",
                          .cuda_worker_program = folder / "nsa-worker-cuda"};
  const auto read = [&] {
    const Inventory inventory(options);
    EXPECT_TRUE(
        Within(absl::Seconds(60), [&] { return inventory.Read().gpus_age_seconds() >= 0; }));
    return inventory.Read();
  };
  const v1::NodeInfo alone = read();
  EXPECT_EQ(alone.nccl_version(), "") << "with one GPU and no rank_address NCCL is not needed";
  EXPECT_EQ(alone.worker_hash().size(), 16u);
  EXPECT_EQ(alone.cuda_worker_hash().size(), 16u);
  EXPECT_NE(alone.worker_hash(), alone.cuda_worker_hash());

  options.rank_address = "10.0.0.2";
  EXPECT_EQ(read().nccl_version(), "2.28.3");
  EXPECT_EQ(read().cuda_problem(), "");
  WriteProgram(folder / "nsa-worker-cuda",
               "#!/bin/sh\ncase $1 in --check-nccl) echo 'NCCL: not found'; exit 1;; esac\n");
  const v1::NodeInfo without = read();
  EXPECT_EQ(without.nccl_version(), "");
  EXPECT_TRUE(without.cuda_worker());
  EXPECT_THAT(without.cuda_problem(), HasSubstr("NCCL: not found (exit code 1)"));
  dlclose(library);
}

TEST(Inventory, SeesThatAProgramWasReplaced) {
  if (NvmlIsInstalled()) GTEST_SKIP() << "this machine has a GPU";
  const TempDir folder;
  WriteProgram(folder / "nsa-worker", "one");
  const AgentOptions options = {
      .node_name = "n", .state_dir = folder.path(), .worker_program = folder / "nsa-worker"};
  const Inventory inventory(options);
  // Without a driver the first heartbeat says everything.
  EXPECT_EQ(inventory.Read().gpus_age_seconds(), 0);
  const std::string before = inventory.Read().worker_hash();
  ASSERT_NE(before, "");
  EXPECT_EQ(inventory.Read().cuda_worker_hash(), "") << "it is not there";
  WriteProgram(folder / "new", "two");
  std::filesystem::rename(folder / "new", folder / "nsa-worker");
  EXPECT_TRUE(Within(absl::Seconds(60), [&] { return inventory.Read().worker_hash() != before; }));
}

TEST(Inventory, FindsTheGpusOfTheDriver) {
  const auto nvml = Nvml::Open();
  if (nvml == nullptr) GTEST_SKIP() << "no NVIDIA driver here";
  ASSERT_NE(nvml->DriverVersion(), "");
  for (const v1::GpuInfo& gpu : nvml->Gpus()) {
    EXPECT_THAT(gpu.uuid(), HasSubstr("GPU-"));
    EXPECT_NE(gpu.name(), "");
    EXPECT_GT(gpu.memory_bytes(), int64_t{1} << 30);
    EXPECT_GT(gpu.free_bytes(), 0);
    EXPECT_LE(gpu.free_bytes(), gpu.memory_bytes());
    EXPECT_GE(gpu.compute_capability(), 50);
  }
  const TempDir folder;
  const AgentOptions options = {.node_name = "n",
                                .state_dir = folder.path(),
                                .cuda_worker_program = folder / "nsa-worker-cuda"};
  const Inventory inventory(options);
  EXPECT_TRUE(Within(absl::Seconds(60), [&] {
    return inventory.Read().cuda_problem().find("nsa-worker-cuda is not there") !=
           std::string::npos;
  }));
}

}  // namespace
}  // namespace nsa::agent
