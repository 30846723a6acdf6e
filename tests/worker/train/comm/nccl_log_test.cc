#include "worker/train/comm/nccl_log.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/testing/temp_dir.h"

namespace nsa::train::nccl {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Transport Read(std::string_view log) {
  LogReader reader;
  reader.Add(log);
  return reader.transport();
}

TEST(NcclLog, SaysNetworkAndConnections) {
  const Transport rdma = Read(
      "gpu-01:41:41 [0] NCCL INFO cudaDriverVersion 13000\n"
      "gpu-01:41:60 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.7<0>\n"
      "gpu-01:41:60 [0] NCCL INFO Using network IB\n"
      "gpu-01:41:66 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n"
      "gpu-01:41:66 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA\n"
      "gpu-01:41:66 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/IB/1/GDRDMA\n"
      "gpu-01:41:66 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n");
  EXPECT_EQ(rdma.network, "IB");
  EXPECT_THAT(rdma.connections, ElementsAre("NET/IB/GDRDMA", "P2P/CUMEM"));
  EXPECT_EQ(TransportText(rdma), "network IB, through NET/IB/GDRDMA and P2P/CUMEM");
  EXPECT_EQ(TransportText({}), "");
}

TEST(NcclLog, KnowsTheLinesOfOtherVersions) {
  EXPECT_EQ(
      Read("[2026-05-05 06:16:47] n:1:1 [3] NCCL INFO Assigned NET plugin IB to comm\n").network,
      "IB");
  EXPECT_THAT(Read("n:1:1 [0] NCCL INFO Channel 00/0 : 4092[d6000] -> 0[d6000] [receive] via "
                   "NET/AWS Libfabric/2/GDRDMA comm 0x9bbf3b0 nRanks 4096\n"
                   "n:1:1 [0] NCCL INFO Channel 00 : 0[1c000] -> 1[1d000] via P2P/IPC\n"
                   "n:1:1 [0] NCCL INFO Channel 00 : 0[1c000] -> 2[1e000] via SHM/direct/direct\n"
                   "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer\n"
                   "n:1:1 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [send] via NET/IB/0\n")
                  .connections,
              ElementsAre("NET/AWS Libfabric/GDRDMA", "NET/IB", "P2P/IPC", "P2P/direct pointer",
                          "SHM/direct"));
}

TEST(NcclLog, IsReadInPiecesOfAnySize) {
  const std::string log =
      "n:1:1 [0] NCCL INFO Using network Socket\n"
      "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n";
  for (size_t size = 1; size < log.size(); ++size) {
    LogReader reader;
    for (size_t at = 0; at < log.size(); at += size)
      reader.Add(std::string_view(log).substr(at, size));
    EXPECT_EQ(TransportText(reader.transport()), "network Socket, through NET/Socket") << size;
  }
  EXPECT_EQ(Read("n:1:1 [0] NCCL INFO Using network Sock").network, "") << "no whole line";
}

TEST(NcclLog, OfBrokenLinesSaysNothing) {
  for (const std::string_view line :
       {"\n", "NCCL INFO Using network IB\n", "n [0] NCCL INFO Channel via NET/Socket/0\n",
        "n [0] NCCL INFO Channel 0 : 0 -> 1 via \n", "n [0] NCCL INFO Channel 0 : 0 -> 1 via NET\n",
        "n [0] NCCL INFO Channel 0 : 0 -> 1 via /Socket\n", "n [0] NCCL INFO Channel 0 : 0 -> 1\n",
        "n [0] NCCL INFO Channel 0 : 0 -> 1 via  comm 0x1\n",
        "n [0] NCCL INFO Channel 0 : 0 -> 1 via NET/\n", "n [0] NCCL INFO Using network \n",
        "n [0] NCCL WARN ", "NCCL WARN x\n"}) {
    LogReader reader;
    reader.Add(line);
    EXPECT_EQ(TransportText(reader.transport()), "") << line;
    EXPECT_THAT(reader.TakeWarnings(), IsEmpty()) << line;
  }
}

// Whatever comes, only so much is kept, and what is kept can be shown.
TEST(NcclLog, IsBounded) {
  LogReader reader;
  reader.Add(absl::StrCat("n [0] NCCL INFO Using network ", std::string(10'000'000, 'x'), "\n"));
  EXPECT_THAT(reader.transport().network, SizeIs(LogReader::kMostName));
  reader.Add("n [0] NCCL INFO Using network a\x1b[31mb\n");
  EXPECT_EQ(reader.transport().network, "a\\x1b[31mb");
  for (int i = 0; i < 1000; ++i) {
    reader.Add(absl::StrCat("n [0] NCCL INFO Channel 0 : 0 -> 1 via NET/", i, "/0\n"));
    reader.Add(absl::StrCat("n [0] net.cc:7 NCCL WARN ", i, "\x1b\n"));
    reader.Add("n [0] net.cc:7 NCCL WARN again\n");
  }
  EXPECT_THAT(reader.transport().connections, SizeIs(LogReader::kMostConnections));
  const std::vector<std::string> warnings = reader.TakeWarnings();
  ASSERT_THAT(warnings, SizeIs(LogReader::kMostWarnings));
  EXPECT_EQ(warnings.front(), "net.cc:7: 0\\x1b");
  EXPECT_EQ(warnings.back(), "net.cc:7: again (further ones are left out)");
  EXPECT_THAT(reader.TakeWarnings(), IsEmpty());
}

TEST(NcclLog, SurvivesNoise) {
  std::mt19937 random(7);  // NOLINT: the same each time
  const std::vector<std::string> words = {" NCCL INFO ",
                                          " NCCL WARN ",
                                          "Using network ",
                                          "Channel ",
                                          " -> ",
                                          " via ",
                                          "/",
                                          "NET",
                                          "\n",
                                          "Assigned NET plugin ",
                                          " to comm",
                                          " comm ",
                                          std::string("\0\xff", 2)};
  for (int i = 0; i < 20'000; ++i) {
    std::string log;
    for (unsigned n = random() % 12; n > 0; --n) log += words[random() % words.size()];
    LogReader reader;
    reader.Add(log + "\n");
    EXPECT_LE(TransportText(reader.transport()).size(), 200u);
    EXPECT_THAT(reader.TakeWarnings(), Each(Not(HasSubstr("\n"))));
  }
}

// A machine with RDMA devices, as Linux shows them in /sys/class/infiniband.
class RdmaTest : public ::testing::Test {
 protected:
  void AddPort(const std::string& device, int port, const std::string& state) const {
    const std::filesystem::path folder = dir_ / device / "ports" / std::to_string(port);
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "state") << state << "\n";
  }

  const TempDir dir_;
};

TEST_F(RdmaTest, AreThePortsWithALink) {
  EXPECT_THAT(ActiveRdmaPorts(dir_ / "gone"), IsEmpty());
  EXPECT_THAT(ActiveRdmaPorts(dir_.path()), IsEmpty());
  AddPort("mlx5_1", 1, "4: ACTIVE");
  AddPort("mlx5_0", 2, "4: ACTIVE");
  AddPort("mlx5_0", 1, "1: DOWN");
  std::filesystem::create_directories(dir_ / "mlx5_2");
  EXPECT_THAT(ActiveRdmaPorts(dir_.path()), ElementsAre("mlx5_0:2", "mlx5_1:1"));
}

TEST(NcclFall, IsSocketsWhereRdmaHasALink) {
  const std::vector<std::string> ports = {"mlx5_0:1", "mlx5_1:1"};
  const Transport sockets = {"Socket", {"NET/Socket", "P2P/CUMEM"}};
  EXPECT_THAT(
      FallToSockets(sockets, ports),
      AllOf(HasSubstr("nccl_sockets: network Socket, through NET/Socket and P2P/CUMEM (RDMA "
                      "has a link at mlx5_0:1, mlx5_1:1); "),
            HasSubstr("/dev/infiniband")));
  EXPECT_EQ(FallToSockets(sockets, {}), "") << "there is no RDMA";
  EXPECT_EQ(FallToSockets({"IB", {"NET/IB/GDRDMA"}}, ports), "");
  EXPECT_EQ(FallToSockets({"Socket", {"P2P/CUMEM"}}, ports), "") << "the network is not used";
  EXPECT_EQ(FallToSockets({}, ports), "") << "nothing is known";
  for (const auto& [name, value] : {std::pair{"NCCL_NET", "Socket"}, {"NCCL_IB_DISABLE", "1"}}) {
    setenv(name, value, 1);
    EXPECT_EQ(FallToSockets(sockets, ports), "") << name << " asks for it";
    unsetenv(name);
  }
}

// Runs in a process of its own (gtest runs death tests so), because the environment and the pipe
// are the process's.
TEST(NcclLogDeathTest, StaysWhereTheEnvironmentWantsIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto file_after = [](const char* name, const char* value) {
    unsetenv("NCCL_DEBUG");
    setenv(name, value, 1);
    RedirectLog();
    const char* const file = std::getenv("NCCL_DEBUG_FILE");
    std::_Exit(file == nullptr ? 3 : std::string_view(file).find("/proc/self/fd/") == 0 ? 4 : 5);
  };
  EXPECT_EXIT(file_after("NCCL_DEBUG", "INFO"), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(file_after("NCCL_DEBUG_SUBSYS", "ALL"), ::testing::ExitedWithCode(3), "");
  EXPECT_EXIT(file_after("NCCL_DEBUG_FILE", "/tmp/x"), ::testing::ExitedWithCode(5), "");
  EXPECT_EXIT(file_after("NCCL_DEBUG", "WARN"), ::testing::ExitedWithCode(4), "");
}

}  // namespace
}  // namespace nsa::train::nccl
