// Sums of gradients with NCCL on real GPUs: one process per rank, each with its own GPU.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/run/process.h"
#include "kernels/cuda/device.h"
#include "kernels/dtype.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/comm/nccl_library.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
// The declarations in nccl_library.h agree with NCCL's own header.
static_assert(sizeof(ncclUniqueId) == sizeof(nsa::train::nccl::UniqueId));
static_assert(offsetof(ncclConfig_t, magic) == offsetof(nsa::train::nccl::Config, magic));
static_assert(offsetof(ncclConfig_t, version) == offsetof(nsa::train::nccl::Config, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(nsa::train::nccl::Config, blocking));
static_assert(offsetof(ncclConfig_t, maxCTAs) == offsetof(nsa::train::nccl::Config, max_ctas));
static_assert(offsetof(ncclConfig_t, netName) == offsetof(nsa::train::nccl::Config, net_name));
static_assert(NCCL_CONFIG_UNDEF_INT == INT_MIN);
static_assert(ncclInProgress == static_cast<int>(nsa::train::nccl::kInProgress));
static_assert(ncclRemoteError == static_cast<int>(nsa::train::nccl::kRemoteError));
static_assert(ncclFloat32 == static_cast<int>(nsa::train::nccl::kFloat32));
static_assert(ncclInt8 == static_cast<int>(nsa::train::nccl::kInt8));
static_assert(ncclFloat64 == static_cast<int>(nsa::train::nccl::kFloat64));
static_assert(ncclBfloat16 == static_cast<int>(nsa::train::nccl::kBfloat16));
static_assert(ncclUint8 == static_cast<int>(nsa::train::nccl::kUint8));
static_assert(ncclSum == static_cast<int>(nsa::train::nccl::kSum));
#endif

namespace nsa::train {
namespace {

struct Ended {
  int code = -1;
  int signal = 0;
  double seconds = 0;  // from the start of the first rank to the end of this one
};

std::string Read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Path of nccl_rank: in bin/ of the build, or of the bundle that contains this test.
std::string RankProgram() {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* const bin : {"../bin", "../../bin"}) {
    const auto program = here / bin / "nccl_rank";
    if (std::filesystem::exists(program)) return program.string();
  }
  return "nccl_rank, in neither ../bin nor ../../bin";
}

// Runs nccl_rank in `mode` on `world` GPUs. A rank is killed if it has not ended within `limit` of
// another rank's end.
std::vector<Ended> RunRanks(const std::string& mode, int world, const TempDir& dir,
                            double limit = 60) {
  std::vector<ProcessIdentity> ranks;
  std::filesystem::create_directories(dir / (mode + ".meet"));
  for (int rank = 0; rank < world; ++rank) {
    auto environment = FilterEnvironment({"PATH", "HOME", "LD_LIBRARY_PATH", "NSA_NCCL_LIBRARY"});
    environment["CUDA_VISIBLE_DEVICES"] = absl::StrCat(rank);
    const auto child = Spawn(
        {.argv = {RankProgram(), mode, absl::StrCat(rank), absl::StrCat(world),
                  (dir / (mode + ".meet")).string(), (dir / absl::StrCat(mode, rank)).string()},
         .environment = environment,
         .output = dir / absl::StrCat(mode, ".log")});
    if (!child.ok()) {
      ADD_FAILURE() << child.status();
      return std::vector<Ended>(static_cast<size_t>(world));
    }
    ranks.push_back(*child);
  }
  std::vector<Ended> ends(ranks.size());
  const absl::Time began = absl::Now();
  absl::Time give_up = began + absl::Seconds(180);
  for (size_t left = ranks.size(); left > 0;) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ends[rank].seconds > 0) continue;
      const auto exit = TryReap(ranks[rank].pid);
      if (!exit.ok() || !exit->has_value()) continue;
      const absl::Time now = absl::Now();
      ends[rank] = {(*exit)->code, (*exit)->signal, absl::ToDoubleSeconds(now - began)};
      give_up = std::min(give_up, now + absl::Seconds(limit));
      --left;
    }
    if (absl::Now() > give_up) {
      for (const ProcessIdentity& rank : ranks) SignalProcess(rank, SIGKILL).IgnoreError();
      give_up = absl::InfiniteFuture();
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  std::cerr << Read(dir / absl::StrCat(mode, ".log"));
  return ends;
}

int64_t FreeOnTheGpu() { return cuda::FreeBytes().value_or(-1); }

class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const int gpus = cuda::DeviceCount();
    if (gpus == 0) GTEST_SKIP() << "no GPU here";
    const auto library = nccl::Load("");
    if (!library.ok()) GTEST_SKIP() << library.status();
  }
  static bool TwoGpus() { return cuda::DeviceCount() >= 2; }
};

TEST_F(NcclGpuTest, SumsAreThoseOfTheCpuAndTheSameBitsOnAllRanksAndTwice) {
  if (!TwoGpus()) GTEST_SKIP() << "needs two GPUs";
  std::string before;
  const int world = std::min(cuda::DeviceCount(), 8);
  for (int run = 0; run < 2; ++run) {
    const TempDir dir;
    for (const Ended& end : RunRanks("sum", world, dir)) EXPECT_EQ(end.code, 0);
    const std::string sums = Read(dir / "sum0");
    ASSERT_FALSE(sums.empty());
    for (int rank = 1; rank < world; ++rank) {
      EXPECT_TRUE(sums == Read(dir / absl::StrCat("sum", rank))) << "rank " << rank << " differs";
    }
    if (run == 1) {
      EXPECT_TRUE(sums == before) << "the runs differ";
    }
    before = sums;
  }
}

// What rank `rank` wrote, rounded to bf16 and back.
std::vector<float> Rounded(const std::string& bytes, size_t count) {
  std::vector<float> values(count);
  std::memcpy(values.data(), bytes.data(), 4 * count);
  for (float& value : values) value = static_cast<float>(bf16(value));
  return values;
}

// Its sums are its own gradients, whichever way they take.
TEST_F(NcclGpuTest, ARankAloneSumsInAndOutsideAGraph) {
  const TempDir dir;
  for (const char* const mode : {"sum", "share", "window", "bf16", "share16", "window16"}) {
    EXPECT_EQ(RunRanks(mode, 1, dir)[0].code, 0) << mode;
  }
  const size_t count = Read(dir / "sum0").size() / 4 - 16;
  const std::vector<float> want = Rounded(Read(dir / "sum0"), count);
  for (const char* const mode : {"share0", "window0", "bf160", "share160", "window160"}) {
    EXPECT_TRUE(Rounded(Read(dir / mode), count) == want) << mode;
  }
}

// Shares of the sums go to their ranks, and what these make of them to all.
TEST_F(NcclGpuTest, SumsOfSharesAreThoseOfTheWholeAndReachAllRanks) {
  if (!TwoGpus()) GTEST_SKIP() << "needs two GPUs";
  const int world = std::min(cuda::DeviceCount(), 8);
  for (const int ranks : std::set{2, world}) {
    const TempDir dir;
    for (const char* const mode :
         {"sum", "bf16", "share", "share16", "window", "window16", "part", "part16"}) {
      for (const Ended& end : RunRanks(mode, ranks, dir)) EXPECT_EQ(end.code, 0) << mode;
      for (int rank = 1; rank < ranks; ++rank) {
        EXPECT_TRUE(Read(dir / absl::StrCat(mode, 0)) == Read(dir / absl::StrCat(mode, rank)))
            << mode << ": rank " << rank << " differs";
      }
    }
    EXPECT_EQ(Read(dir / "part0"), Read(dir / "window0")) << "gathers copy";
    EXPECT_EQ(Read(dir / "part160"), Read(dir / "window160"));
    if (ranks > 2) continue;  // the order of a sum is another one
    const size_t count = Read(dir / "sum0").size() / 4 - 16;
    EXPECT_EQ(Rounded(Read(dir / "sum0"), count), Rounded(Read(dir / "share0"), count));
    EXPECT_EQ(Rounded(Read(dir / "bf160"), count), Rounded(Read(dir / "share160"), count));
    EXPECT_EQ(Rounded(Read(dir / "share0"), count), Rounded(Read(dir / "window0"), count));
    EXPECT_EQ(Rounded(Read(dir / "share160"), count), Rounded(Read(dir / "window160"), count));
    EXPECT_NE(Rounded(Read(dir / "bf160"), count), Rounded(Read(dir / "sum0"), count));
  }
}

TEST_F(NcclGpuTest, EndsSoonWhenAPeerIsKilledAndLeavesNoMemoryInUse) {
  if (!TwoGpus()) GTEST_SKIP() << "needs two GPUs";
  ASSERT_TRUE(cuda::ReadDevice().ok());
  const int64_t free = FreeOnTheGpu();
  for (const char* const mode : {"die", "cut"}) {
    const TempDir dir;
    const std::vector<Ended> ends = RunRanks(mode, 2, dir, /*limit=*/20);
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_EQ(ends[1].signal, SIGKILL) << mode;
    EXPECT_EQ(ends[0].code, 5) << mode;
    EXPECT_LT(ends[0].seconds - ends[1].seconds, 15) << mode;
    // The driver frees the memory shortly after the end of the process.
    for (int i = 0; i < 100 && FreeOnTheGpu() < free - (64 << 20); ++i) {
      absl::SleepFor(absl::Milliseconds(100));
    }
    EXPECT_GE(FreeOnTheGpu(), free - (64 << 20)) << mode;
  }
}

TEST_F(NcclGpuTest, GivesUpOnAPeerThatStandsStill) {
  if (!TwoGpus()) GTEST_SKIP() << "needs two GPUs";
  const TempDir dir;
  // RunRanks() kills the rank that makes no progress, `limit` after the other one has ended.
  const std::vector<Ended> ends = RunRanks("stand", 2, dir, /*limit=*/1);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].code, 5);
  EXPECT_EQ(ends[1].signal, SIGKILL);
  EXPECT_LT(ends[0].seconds, ends[1].seconds);
}

}  // namespace
}  // namespace nsa::train
