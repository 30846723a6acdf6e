#include "worker/train/comm/nccl_comm.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <latch>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "kernels/dtype.h"
#include "tests/testing/fakes/fake_nccl.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/comm/on_ranks.h"
#include "worker/train/comm/nccl_library.h"
#include "worker/train/comm/nccl_log.h"

namespace nsa::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Fake(const std::string& kind) { return TestFile(kind + ".so"); }

// Loads the stand-in for NCCL into this process and controls it.
class NcclCommTest : public ::testing::Test {
 protected:
  void SetUp() override {
    nccl::SetEnvironment();
    void* library = dlopen(Fake("fake_nccl").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    set_ = reinterpret_cast<FakeNcclSetFunction>(dlsym(library, "FakeNcclSet"));
    read_ = reinterpret_cast<FakeNcclReadFunction>(dlsym(library, "FakeNcclRead"));
    done_ = reinterpret_cast<FakeNcclDoneFunction>(dlsym(library, "FakeNcclDone"));
    say_ = reinterpret_cast<FakeNcclSayFunction>(dlsym(library, "FakeNcclSay"));
    set_(kFakeWell);
    say_(nullptr, nullptr);
  }

  NcclOptions Options(Comm* host, absl::Duration timeout = absl::Seconds(20)) const {
    return {.host = host, .timeout = timeout, .library = Fake("fake_nccl")};
  }

  FakeNcclCounts counts() const {
    FakeNcclCounts counts;
    read_(&counts);
    return counts;
  }

  // Returns a function that returns whether everything enqueued on `stream` is done.
  std::function<absl::StatusOr<bool>()> Done(void* stream) const {
    return [this, stream]() -> absl::StatusOr<bool> { return done_(stream); };
  }

  // Runs `body` on one thread per rank.
  void RunRanks(int world, const std::function<void(Comm*)>& body) {
    OnRanks(world, body, absl::Seconds(20));
  }

  FakeNcclSetFunction set_ = nullptr;
  FakeNcclSayFunction say_ = nullptr;
  FakeNcclReadFunction read_ = nullptr;
  FakeNcclDoneFunction done_ = nullptr;
};

TEST_F(NcclCommTest, SumsOverTheRanksThatMeetByTheIdOfRankZero) {
  for (const int mood : {kFakeWell, kFakeSlowToEnqueue}) {
    set_(mood);
    RunRanks(3, [&](Comm* host) {
      auto comm = NcclComm::Connect(Options(host));
      ASSERT_TRUE(comm.ok()) << comm.status();
      EXPECT_EQ((*comm)->world_size(), 3);
      std::vector<float> values(100, static_cast<float>(1 + (*comm)->rank()));
      char stream = 0;
      ASSERT_TRUE((*comm)->AllReduceSum("bucket", values.data(), 100, &stream).ok());
      ASSERT_TRUE((*comm)->WaitFor("gradients", Done(&stream)).ok());
      EXPECT_EQ(values, std::vector<float>(100, 6.0f));
      EXPECT_EQ((*comm)->sequence(), 1);
      ASSERT_TRUE(host->Barrier("end").ok());
    });
    EXPECT_EQ(counts().joined, 3);
    EXPECT_EQ(counts().destroyed, 3);
    EXPECT_EQ(counts().aborted, 0);
  }
}

TEST_F(NcclCommTest, SumsForOneRankAndLeavesTheOthersTheirOwn) {
  RunRanks(3, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host));
    ASSERT_TRUE(comm.ok()) << comm.status();
    const auto own = static_cast<float>(1 + (*comm)->rank());
    std::vector<float> values(100, own);
    char stream = 0;
    const NcclValues sent = {.data = values.data(), .count = 100};
    ASSERT_TRUE((*comm)->ReduceSum("piece", sent, 1, &stream).ok());
    ASSERT_TRUE((*comm)->WaitFor("gradients", Done(&stream)).ok());
    EXPECT_EQ(values, std::vector<float>(100, (*comm)->rank() == 1 ? 6.0f : own));
    ASSERT_TRUE(host->Barrier("end").ok());
  });
}

TEST_F(NcclCommTest, SumsDoublesAndBf16) {
  RunRanks(2, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host));
    ASSERT_TRUE(comm.ok()) << comm.status();
    std::vector<double> wide = {0x1p40 + (*comm)->rank(), 0.5};
    std::vector<bf16> narrow(3, bf16(static_cast<float>(2 + (*comm)->rank())));
    char stream = 0;
    const NcclValues doubles = {
        .data = wide.data(), .count = 2, .type = NcclValues::Type::kFloat64};
    const NcclValues halves = {
        .data = narrow.data(), .count = 3, .type = NcclValues::Type::kBfloat16};
    ASSERT_TRUE((*comm)->AllReduceSum("norm", doubles, &stream).ok());
    ASSERT_TRUE((*comm)->AllReduceSum("bucket", halves, &stream).ok());
    ASSERT_TRUE((*comm)->WaitFor("gradients", Done(&stream)).ok());
    EXPECT_EQ(wide, (std::vector<double>{0x1p41 + 1, 1.0})) << "a float has not so many bits";
    for (const bf16 value : narrow) EXPECT_EQ(static_cast<float>(value), 5.0f);
    ASSERT_TRUE(host->Barrier("end").ok());
  });
}

TEST_F(NcclCommTest, CopiesFromOneRankToAllInPlaceOrElsewhere) {
  RunRanks(3, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host));
    ASSERT_TRUE(comm.ok()) << comm.status();
    std::vector<float> own(10, static_cast<float>((*comm)->rank())), piece(10, -1.0f);
    char stream = 0;
    ASSERT_TRUE((*comm)->Broadcast("checkpoint", own.data(), piece.data(), 40, 2, &stream).ok());
    ASSERT_TRUE((*comm)->Broadcast("weights", own.data(), own.data(), 40, 1, &stream).ok());
    ASSERT_TRUE((*comm)->WaitFor("copies", Done(&stream)).ok());
    EXPECT_EQ(piece, std::vector<float>(10, 2.0f));
    EXPECT_EQ(own, std::vector<float>(10, 1.0f));
    EXPECT_EQ((*comm)->sequence(), 2);
    ASSERT_TRUE(host->Barrier("end").ok());
  });
}

// A part of the model, of which each of three ranks has a piece, in memory of its own.
TEST_F(NcclCommTest, BringsThePiecesOfAllRanksTogetherAsOneCollective) {
  RunRanks(3, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host));
    ASSERT_TRUE(comm.ok()) << comm.status();
    const int rank = host->rank();
    const std::vector<int> own = {10 * rank, 10 * rank + 1, 10 * rank + 2};
    std::vector<int> part(6, -1);
    std::vector<NcclPiece> pieces;
    for (const auto& [root, begin, size] :
         {std::tuple(0, 0, 2), std::tuple(1, 2, 1), std::tuple(2, 3, 3)}) {
      pieces.push_back({.from = root == rank ? own.data() : nullptr,
                        .to = &part[begin],
                        .bytes = 4 * size,
                        .root = root});
    }
    char stream = 0;
    ASSERT_TRUE((*comm)->Broadcast("gather_weights", pieces, &stream).ok());
    ASSERT_TRUE((*comm)->WaitFor("gather_weights", Done(&stream)).ok());
    EXPECT_EQ(part, (std::vector<int>{0, 1, 10, 20, 21, 22}));
    EXPECT_EQ((*comm)->sequence(), 1);
    ASSERT_TRUE(host->Barrier("end").ok());
  });
}

TEST_F(NcclCommTest, APieceThatNcclRefusesClosesItsGroupAndTheCommunicator) {
  set_(kFakeRefusesSums);
  const auto host = SingleRank();
  auto comm = NcclComm::Connect(Options(host.get()));
  ASSERT_TRUE(comm.ok()) << comm.status();
  int value = 0;
  char stream = 0;
  const NcclPiece piece = {.from = &value, .to = &value, .bytes = 4};
  const absl::Status refused = (*comm)->Broadcast("weights", std::span(&piece, 1), &stream);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("weights"), HasSubstr("ncclBroadcast")));
  EXPECT_EQ((*comm)->AllReduceSum("sum", nullptr, 0, &stream), refused) << "of no use any more";
}

// Two of three ranks exchange two pieces each; the third is not asked.
TEST_F(NcclCommTest, ExchangesBetweenSomeRanksInOrder) {
  RunRanks(3, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host));
    ASSERT_TRUE(comm.ok()) << comm.status();
    const int rank = host->rank();
    if (rank < 2) {
      const std::vector<int> send = {10 * rank + 1, 10 * rank + 2, 10 * rank + 3};
      std::vector<int> receive(3, -1);
      const NcclTransfer transfers[] = {
          {.peer = 1 - rank, .send = &send[0], .receive = &receive[1], .bytes = 8},
          {.peer = 1 - rank, .send = &send[2], .receive = &receive[0], .bytes = 4}};
      char stream = 0;
      ASSERT_TRUE((*comm)->Exchange("heads", transfers, &stream).ok());
      ASSERT_TRUE((*comm)->WaitFor("heads", Done(&stream)).ok());
      const int his = 10 * (1 - rank);
      EXPECT_EQ(receive, (std::vector<int>{his + 3, his + 1, his + 2}));
      EXPECT_EQ((*comm)->sequence(), 1);
    }
    ASSERT_TRUE(host->Barrier("end").ok());
  });
  EXPECT_EQ(counts().exchanges, 2);
}

TEST_F(NcclCommTest, AnExchangeThatNcclRefusesClosesItsGroupAndTheCommunicator) {
  set_(kFakeRefusesSums);
  const auto host = SingleRank();
  auto comm = NcclComm::Connect(Options(host.get()));
  ASSERT_TRUE(comm.ok()) << comm.status();
  int values[2] = {};
  char stream = 0;
  const NcclTransfer transfer = {.peer = 0, .send = &values[0], .receive = &values[1], .bytes = 4};
  const absl::Status refused = (*comm)->Exchange("heads", std::span(&transfer, 1), &stream);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("heads"), HasSubstr("ncclSend")));
  EXPECT_EQ((*comm)->AllReduceSum("sum", nullptr, 0, &stream), refused) << "of no use any more";
  comm->reset();  // waits for the abort
  EXPECT_EQ(counts().aborted, 1);
}

TEST_F(NcclCommTest, SaysWhichLibraryItHas) {
  const auto comm = SingleRank();
  const auto nccl = NcclComm::Connect(Options(comm.get()));
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  EXPECT_THAT((*nccl)->description(),
              AllOf(HasSubstr("NCCL 2.28.9 ("), HasSubstr("fake_nccl.so), ring, simple")));
}

// The stand-in opens the log by the name in NCCL_DEBUG_FILE, as NCCL does.
TEST_F(NcclCommTest, SaysWhichNetworkAndWhichConnectionsThereAre) {
  say_("m1:7:7 [0] NCCL INFO Using network Socket\n",
       "m1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
       "m1:7:9 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] via P2P/CUMEM/read\n");
  RunRanks(2, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host));
    ASSERT_TRUE(comm.ok()) << comm.status();
    EXPECT_THAT((*comm)->description(), HasSubstr("ring, simple, network Socket"));
    std::vector<float> values(10, 1.0f);
    char stream = 0;
    ASSERT_TRUE((*comm)->AllReduceSum("bucket", values.data(), 10, &stream).ok());
    ASSERT_TRUE((*comm)->WaitFor("gradients", Done(&stream)).ok());
    EXPECT_THAT((*comm)->description(),
                HasSubstr("network Socket, through NET/Socket and P2P/CUMEM"));
    ASSERT_TRUE(host->Barrier("end").ok());
  });
  const std::vector<std::string> ports = {"mlx5_0:1"};
  EXPECT_THAT(nccl::FallToSockets(nccl::ReadLog(), ports), HasSubstr("mlx5_0:1"));
}

// The log is read as it grows: together these communicators say more than a pipe holds.
TEST_F(NcclCommTest, ReadsALogOfAnyLength) {
  const std::string much = std::string(30'000, 'x') + "\n";
  say_(much.c_str(), nullptr);
  for (int i = 0; i < 80; ++i) {
    const auto host = SingleRank();
    const auto comm = NcclComm::Connect(Options(host.get()));
    ASSERT_TRUE(comm.ok()) << comm.status();
  }
}

TEST_F(NcclCommTest, ShowsOnTheStatusPageThatTheRanksMeet) {
  const TempDir dir;
  auto page = StatusPage::Create(dir / "status", 0, 1, 1);
  ASSERT_TRUE(page.ok());
  set_(kFakeNeverJoins);
  const auto host = SingleRank();
  NcclOptions options = Options(host.get(), absl::Seconds(1));
  options.status_page = &*page;
  std::thread connecting([&] { EXPECT_FALSE(NcclComm::Connect(options).ok()); });
  std::string during;
  while (during.empty()) during = ReadStatusPage(dir / "status")->collective;
  connecting.join();
  EXPECT_EQ(during, "nccl_connect");
  EXPECT_EQ(ReadStatusPage(dir / "status")->collective, "");
}

// A long step does not time out as long as its sums make progress.
TEST_F(NcclCommTest, WaitsAnewWhenTheWaitHasComeFurther) {
  const auto host = SingleRank();
  const auto comm = NcclComm::Connect(Options(host.get(), absl::Milliseconds(200)));
  ASSERT_TRUE(comm.ok()) << comm.status();
  const absl::Duration began = RealClock().Monotonic();
  EXPECT_TRUE((*comm)
                  ->WaitFor("step",
                            [&]() -> absl::StatusOr<bool> {
                              (*comm)->Touch();
                              return RealClock().Monotonic() - began > absl::Milliseconds(500);
                            })
                  .ok());
}

// A peer dies while this rank waits for its GPU. NCCL does not report that; the closed connection
// does.
TEST_F(NcclCommTest, EndsAWaitWhenAPeerHasGone) {
  absl::Status survivor;
  const absl::Duration began = RealClock().Monotonic();
  std::latch connected(2);
  RunRanks(2, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host, absl::Seconds(60)));
    connected.arrive_and_wait();
    ASSERT_TRUE(comm.ok()) << comm.status();
    if (host->rank() == 1) return;  // ends without taking part in the sum
    std::vector<float> values(10, 1.0f);
    char stream = 0;
    ASSERT_TRUE((*comm)->AllReduceSum("bucket", values.data(), 10, &stream).ok());
    survivor = (*comm)->WaitFor("gradients", Done(&stream));
    EXPECT_EQ((*comm)->AllReduceSum("bucket", values.data(), 10, &stream), survivor)
        << "of no use any more";
  });
  EXPECT_EQ(survivor.code(), absl::StatusCode::kUnavailable) << survivor;
  EXPECT_THAT(std::string(survivor.message()), HasSubstr("gradients: PEER_LOST"));
  EXPECT_LT(RealClock().Monotonic() - began, absl::Seconds(30)) << "before the timeout";
  EXPECT_EQ(counts().aborted, 1);
}

TEST_F(NcclCommTest, EndsAWaitWhenNcclReportsARemoteError) {
  set_(kFakeRemoteError);
  absl::Status waiting;
  RunRanks(2, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host));
    ASSERT_TRUE(comm.ok()) << comm.status();
    if (host->rank() == 0) {
      std::vector<float> values(10, 1.0f);
      char stream = 0;
      ASSERT_TRUE((*comm)->AllReduceSum("bucket", values.data(), 10, &stream).ok());
      waiting = (*comm)->WaitFor("gradients", Done(&stream));
    }
    ASSERT_TRUE(host->Barrier("end").ok());
  });
  EXPECT_EQ(waiting.code(), absl::StatusCode::kUnavailable) << waiting;
  EXPECT_THAT(
      std::string(waiting.message()),
      AllOf(HasSubstr("PEER_LOST"), HasSubstr("remote process exited"), HasSubstr("fake detail")));
}

TEST_F(NcclCommTest, GivesUpOnAPeerThatDoesNotComeToTheSum) {
  absl::Status waiting;
  RunRanks(2, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host, absl::Milliseconds(1500)));
    ASSERT_TRUE(comm.ok()) << comm.status();
    if (host->rank() == 0) {
      std::vector<float> values(10, 1.0f);
      char stream = 0;
      ASSERT_TRUE((*comm)->AllReduceSum("bucket", values.data(), 10, &stream).ok());
      waiting = (*comm)->WaitFor("gradients", Done(&stream));
    }
    ASSERT_TRUE(host->Barrier("end").ok());
  });
  EXPECT_EQ(waiting.code(), absl::StatusCode::kDeadlineExceeded) << waiting;
  EXPECT_THAT(std::string(waiting.message()), HasSubstr("gradients: PEER_LOST"));
  EXPECT_EQ(counts().aborted, 1);
}

TEST_F(NcclCommTest, GivesUpWhenNcclDoesNotGetTheRanksTogether) {
  set_(kFakeNeverJoins);
  const auto host = SingleRank();
  const auto comm = NcclComm::Connect(Options(host.get(), absl::Milliseconds(300)));
  EXPECT_EQ(comm.status().code(), absl::StatusCode::kDeadlineExceeded) << comm.status();
  EXPECT_EQ(counts().aborted, 1);
}

TEST_F(NcclCommTest, DoesNotWaitForAnAbortThatHangs) {
  set_(kFakeAbortHangs);
  const absl::Duration began = RealClock().Monotonic();
  const auto host = SingleRank();
  auto comm = NcclComm::Connect(Options(host.get()));
  ASSERT_TRUE(comm.ok()) << comm.status();
  (*comm)->Abort();
  EXPECT_FALSE((*comm)->Check().ok());
  EXPECT_LT(RealClock().Monotonic() - began, absl::Seconds(4)) << "nobody waits yet";
  comm->reset();
  EXPECT_LT(RealClock().Monotonic() - began, absl::Seconds(9));
}

TEST_F(NcclCommTest, ReturnsWhatNcclRefusesAndWhatTheGpuReports) {
  const auto host = SingleRank();
  auto comm = NcclComm::Connect(Options(host.get()));
  ASSERT_TRUE(comm.ok()) << comm.status();
  const absl::Status gpu = (*comm)->WaitFor("gradients", []() -> absl::StatusOr<bool> {
    return absl::InternalError("cudaEventQuery: cudaErrorIllegalAddress");
  });
  EXPECT_EQ(gpu.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(gpu.message()), HasSubstr("cudaErrorIllegalAddress"));

  set_(kFakeRefusesSums);
  comm = NcclComm::Connect(Options(host.get()));
  ASSERT_TRUE(comm.ok()) << comm.status();
  float value = 0;
  const absl::Status refused = (*comm)->AllReduceSum("bucket", &value, 1, nullptr);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
}

// A peer's death may first show as an error of this rank's GPU. The peer is then reported as the
// cause.
TEST_F(NcclCommTest, BlamesThePeerForAnErrorThatItsEndHasCaused) {
  absl::Status survivor;
  std::latch connected(2), failed(1);
  RunRanks(2, [&](Comm* host) {
    auto comm = NcclComm::Connect(Options(host));
    connected.arrive_and_wait();
    ASSERT_TRUE(comm.ok()) << comm.status();
    if (host->rank() == 1) {
      failed.wait();
      return;
    }
    survivor = (*comm)->WaitFor("gradients", [&]() -> absl::StatusOr<bool> {
      failed.count_down();
      return absl::InternalError("cudaEventQuery: cudaErrorIllegalAddress");
    });
  });
  EXPECT_EQ(survivor.code(), absl::StatusCode::kUnavailable) << survivor;
  EXPECT_THAT(std::string(survivor.message()),
              AllOf(HasSubstr("PEER_LOST"), HasSubstr("cudaErrorIllegalAddress")));
}

TEST(NcclLibrary, SaysWhatIsMissing) {
  const auto absent = nccl::Load("/nowhere/libnccl.so.2");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound) << absent.status();
  EXPECT_THAT(std::string(absent.status().message()),
              AllOf(HasSubstr("/nowhere/libnccl.so.2"), HasSubstr("install libnccl2")));
  const auto part = nccl::Load(Fake("fake_nccl_without_abort"));
  EXPECT_EQ(part.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(part.status().message()), HasSubstr("no function ncclCommAbort"));
  const auto old = nccl::Load(Fake("fake_nccl_old"));
  EXPECT_EQ(old.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(old.status().message()), HasSubstr("version 2.10.3"));
}

TEST(NcclLibrary, KeepsNvlinkMulticastOffWhateverTheEnvironmentSays) {
  setenv("NCCL_NVLS_ENABLE", "1", 1);
  setenv("NCCL_ALGO", "NVLS", 1);
  EXPECT_FALSE(nccl::EnvironmentIsSet());
  const auto host = SingleRank();
  EXPECT_EQ(NcclComm::Connect({.host = host.get(), .library = Fake("fake_nccl")}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  nccl::SetEnvironment();
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
  EXPECT_TRUE(nccl::EnvironmentIsSet());
}

TEST(NcclEnvironment, UsesExactlyTheInterfaceOfTheRanksUnlessTheUserNamedOne) {
  unsetenv("NCCL_SOCKET_IFNAME");
  nccl::SetEnvironment();
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "lo");
  nccl::UseInterface("eth1");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=eth1");
  setenv("NCCL_SOCKET_IFNAME", "ib0", 1);
  nccl::SetEnvironment();
  nccl::UseInterface("eth1");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "ib0");
  unsetenv("NCCL_SOCKET_IFNAME");
}

// Runs in a process of its own, because what counts is what the process was started with.
TEST(NcclEnvironmentDeathTest, SaysWhichVariablesOfTheUserItHasReplaced) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start = [] {
    for (const auto& [name, value] : nsa::VariablesWith("NCCL_")) unsetenv(name.c_str());
    setenv("NCCL_ALGO", "Tree", 1);
    setenv("NCCL_COMM_ID", "10.0.0.1:5\n", 1);
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_IB_HCA", "mlx5_0", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    nccl::SetEnvironment();
    nccl::UseInterface("eth1");
    std::fputs(nccl::ReplacedText(nccl::ReplacedEnvironment()).c_str(), stderr);
    std::_Exit(3);
  };
  EXPECT_EXIT(start(), ::testing::ExitedWithCode(3),
              ::testing::StrEq("NCCL_ALGO=Ring (Tree was set), NCCL_COMM_ID is removed "
                               "(10.0.0.1:5\\n was set), NCCL_SOCKET_IFNAME==eth1 (lo was set)"));
}

}  // namespace
}  // namespace nsa::train
