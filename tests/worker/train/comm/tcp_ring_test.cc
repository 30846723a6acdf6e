// Ranks that listen on addresses other than 127.0.0.1, and what connects to them uninvited.
#include "worker/train/comm/tcp_ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/reason.h"
#include "common/run/atomic_file.h"
#include "common/run/rank_address.h"
#include "tests/testing/temp_dir.h"

namespace nsa::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RingOptions Rank(const TempDir& dir, int rank, const ListenAt& listen,
                 absl::Duration timeout = absl::Seconds(20)) {
  return {
      .rank = rank, .world_size = 2, .meeting = dir / "meet", .listen = listen, .timeout = timeout};
}

std::string AddressFile(const TempDir& dir, int rank) {
  return (dir / "meet" / ("rank-000" + std::to_string(rank) + ".address")).string();
}

RankAddress WaitForAddress(const TempDir& dir, int rank) {
  while (true) {
    const auto text = ReadWholeFile(AddressFile(dir, rank));
    if (text.ok()) return ParseRankAddress(*text).value();
    absl::SleepFor(absl::Milliseconds(2));
  }
}

Fd ConnectedTo(const RankAddress& address) {
  const SocketAddress to = ToSocketAddress(address.host, address.port).value();
  Fd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), to.get(), to.length), 0);
  return fd;
}

// A listener that is not a rank: it takes connections and connects to nobody.
struct Stranger {
  explicit Stranger(const std::string& host) {
    SocketAddress address = ToSocketAddress(host, 0).value();
    EXPECT_EQ(bind(fd.get(), address.get(), address.length), 0);
    EXPECT_EQ(listen(fd.get(), 1), 0);
    address.length = sizeof(address.storage);
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
    port = address.port();
  }

  Fd fd{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  uint16_t port = 0;
};

// Meets as two ranks and sends a byte each way around the ring.
void MeetAndTransfer(const TempDir& dir, const ListenAt& zero, const ListenAt& one) {
  std::array<std::byte, 2> received = {};
  const auto run = [&](int rank, const ListenAt& at) {
    absl::StatusOr<TcpRing> ring = TcpRing::Meet(Rank(dir, rank, at));
    ASSERT_TRUE(ring.ok()) << ring.status();
    const std::array<std::byte, 1> out = {static_cast<std::byte>(40 + rank)};
    ASSERT_TRUE(ring->Transfer(out, std::span(received).subspan(rank, 1)).ok());
  };
  std::thread other([&] { run(1, one); });
  run(0, zero);
  other.join();
  EXPECT_EQ(received[0], std::byte{41});
  EXPECT_EQ(received[1], std::byte{40});
}

TEST(TcpRing, RanksMeetAtTheAddressesThatTheyListenOn) {
  const TempDir dir;
  MeetAndTransfer(dir, {.host = "127.0.0.2"}, {.host = "127.0.0.3"});
  EXPECT_EQ(WaitForAddress(dir, 0).host, "127.0.0.2");
  EXPECT_EQ(WaitForAddress(dir, 1).host, "127.0.0.3");
}

TEST(TcpRing, RanksMeetOverIpv6) {
  if (!InterfaceOf("::1").ok()) GTEST_SKIP() << "this machine has no IPv6";
  const TempDir dir;
  MeetAndTransfer(dir, {.host = "::1"}, {.host = "127.0.0.1"});
}

TEST(TcpRing, TakesTheFirstFreePortOfTheRange) {
  const Stranger taken("127.0.0.4");
  const uint16_t port = taken.port;
  {
    const TempDir dir;
    const auto none =
        TcpRing::Meet(Rank(dir, 0, {.host = "127.0.0.4", .first_port = port, .last_port = port}));
    EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition) << none.status();
    EXPECT_THAT(std::string(none.status().message()), HasSubstr("none is free"));
  }
  const TempDir dir;
  const ListenAt range = {.host = "127.0.0.4",
                          .first_port = port,
                          .last_port = static_cast<uint16_t>(std::min(port + 50, 65535))};
  MeetAndTransfer(dir, range, range);
  EXPECT_GT(WaitForAddress(dir, 0).port, port);
  EXPECT_LE(WaitForAddress(dir, 0).port, range.last_port);
  EXPECT_NE(WaitForAddress(dir, 0).port, WaitForAddress(dir, 1).port);
}

TEST(TcpRing, RefusesAnAddressThatTheMachineDoesNotHave) {
  const TempDir dir;
  // TEST-NET-1 of RFC 5737: no machine has it.
  const auto other = TcpRing::Meet(Rank(dir, 0, {.host = "192.0.2.1"}));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument) << other.status();
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("192.0.2.1"));
  const auto name = TcpRing::Meet(Rank(dir, 1, {.host = "localhost"}));
  EXPECT_EQ(name.status().code(), absl::StatusCode::kInvalidArgument) << name.status();
}

TEST(TcpRing, NamesTheRanksAndTheAddressThatCannotBeConnectedTo) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "meet");
  RankAddress gone = {.host = "127.0.0.5", .port = 1};  // nobody listens at port 1
  ASSERT_TRUE(WriteFileAtomically(AddressFile(dir, 1), FormatRankAddress(gone)).ok());
  const auto ring = TcpRing::Meet(Rank(dir, 0, {}));
  EXPECT_EQ(ring.status().code(), absl::StatusCode::kUnavailable) << ring.status();
  EXPECT_EQ(ReasonOf(ring.status()), Reason::kPeerLost);
  EXPECT_THAT(std::string(ring.status().message()),
              AllOf(HasSubstr("connect to rank 1 at 127.0.0.5:1"), HasSubstr("refused")));
}

TEST(TcpRing, NamesTheRankThatDoesNotConnect) {
  const TempDir dir;
  const Stranger silent("127.0.0.1");
  std::filesystem::create_directories(dir / "meet");
  ASSERT_TRUE(WriteFileAtomically(AddressFile(dir, 1),
                                  FormatRankAddress({.host = "127.0.0.1", .port = silent.port}))
                  .ok());
  const auto ring = TcpRing::Meet(Rank(dir, 0, {.host = "127.0.0.6"}, absl::Milliseconds(300)));
  EXPECT_EQ(ring.status().code(), absl::StatusCode::kDeadlineExceeded) << ring.status();
  EXPECT_THAT(std::string(ring.status().message()), HasSubstr("connects to rank 0 at 127.0.0.6:"));
}

TEST(TcpRing, ConnectionsWithoutTheTokenNeitherEnterNorDelayTheRanks) {
  const TempDir dir;
  absl::StatusOr<TcpRing> zero = absl::UnknownError("not met");
  std::thread waits([&] { zero = TcpRing::Meet(Rank(dir, 0, {})); });
  const RankAddress address = WaitForAddress(dir, 0);
  // More silent connections than may wait at the same time, some with half a token or a wrong one.
  std::vector<Fd> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(ConnectedTo(address));
    const RankToken wrong = {};
    const size_t bytes = i % 3 == 0 ? 0 : i % 3 == 1 ? wrong.size() / 2 : wrong.size();
    EXPECT_EQ(send(strangers.back().get(), wrong.data(), bytes, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes));
  }
  const absl::Duration began = RealClock().Monotonic();
  const absl::StatusOr<TcpRing> one = TcpRing::Meet(Rank(dir, 1, {}));
  waits.join();
  EXPECT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(zero.ok()) << zero.status();
  // One after the other, a second each, they would delay it by more than a minute.
  EXPECT_LT(RealClock().Monotonic() - began, absl::Seconds(10));
}

}  // namespace
}  // namespace nsa::train
