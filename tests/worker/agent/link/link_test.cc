// The agent's connection to a coordinator that does not answer.
#include "worker/agent/link/link.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "tests/testing/fakes/fake_coordinator.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/net/silent_server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/agent/agent.h"
#include "worker/agent/link/accepts.h"

namespace nsa::agent {
namespace {

using ::testing::HasSubstr;

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    options_.node_name = "test-node";
    options_.coordinator_address = "unix:" + path_;
    options_.state_dir = folder_ / "agent";
    options_.heartbeat = absl::Milliseconds(50);
    options_.silence = {.patience = absl::Milliseconds(300), .fresh = 2};
  }

  TempDir folder_;
  const std::string path_ = folder_ / "socket";
  AgentOptions options_;
};

TEST_F(LinkTest, ConnectsToACoordinatorAndNotToASilentServer) {
  auto link = Link::Open(options_).value();
  EXPECT_THAT(link->Connect(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not reachable")));
  {
    const SilentServer silent(path_);
    EXPECT_THAT(link->Connect(absl::Milliseconds(50)), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_FALSE(link->connected());
  }
  std::filesystem::remove(path_);
  FakeCoordinator coordinator(path_);
  ASSERT_OK(link->Reopen());
  EXPECT_OK(link->Connect(absl::Seconds(20)));
  EXPECT_TRUE(link->connected());
}

TEST_F(LinkTest, AFreshConnectionWorksWhileCallsUseTheOldOne) {
  FakeCoordinator coordinator(path_);
  auto link = Link::Open(options_).value();
  Caller caller(link.get());
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) {
      v1::JoinResponse response;
      EXPECT_OK(caller.Call(&v1::FleetService::StubInterface::Join, v1::JoinRequest(), &response));
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_OK(link->Reopen());
    EXPECT_OK(link->Connect(absl::Seconds(20)));
  }
  done = true;
  other.join();
}

TEST_F(LinkTest, ACallerThatIsCancelledEndsItsCallAndMakesNoOther) {
  const SilentServer silent(path_);
  auto link = Link::Open(options_).value();
  Caller caller(link.get());
  Caller other(link.get());
  const absl::Duration begin = RealClock().Monotonic();
  std::thread canceller([&] {
    absl::SleepFor(absl::Milliseconds(100));
    caller.Cancel();
  });
  v1::HeartbeatResponse response;
  // Also when the call has failed already: connections to this server never become ready.
  while (RealClock().Monotonic() - begin < absl::Milliseconds(200)) {
    EXPECT_FALSE(
        caller.Call(&v1::FleetService::StubInterface::Heartbeat, v1::HeartbeatRequest(), &response)
            .ok());
  }
  canceller.join();
  EXPECT_THAT(
      caller.Call(&v1::FleetService::StubInterface::Heartbeat, v1::HeartbeatRequest(), &response),
      StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(4));
}

TEST_F(LinkTest, AnAgentThatNoConnectionHelpsAsksForItsEndOnce) {
  const SilentServer silent(path_);
  std::atomic<int> lost = 0;
  const auto agent = Agent::Start(options_, [&lost](Agent::End) { ++lost; });
  ASSERT_OK(agent);
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return lost > 0; }));
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_EQ(lost, 1);
}

TEST_F(LinkTest, AnAgentWhoseOwnCertificateHasEndedWaitsForAnother) {
  const SilentServer silent(path_);
  ASSERT_TRUE(MakeCertificates(folder_.path()));
  const auto use = [&](const std::string& name) {
    for (const char* ending : {".key", ".crt"}) {
      std::filesystem::copy_file(folder_ / (name + ending), folder_ / ("own" + std::string(ending)),
                                 std::filesystem::copy_options::overwrite_existing);
    }
  };
  use("client");
  options_.tls.set_certificate_file((folder_ / "own.crt").string());
  options_.tls.set_private_key_file((folder_ / "own.key").string());
  options_.tls.set_client_ca_file((folder_ / "ca.crt").string());
  std::atomic<int> lost = 0;
  const auto agent = Agent::Start(options_, [&lost](Agent::End) { ++lost; });
  ASSERT_OK(agent);
  use("ended");
  absl::SleepFor(absl::Milliseconds(1500));  // longer than the patience with three connections
  EXPECT_EQ(lost, 0) << "another start would refuse it";
  use("client");
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return lost > 0; })) << "now a start may help";
}

TEST_F(LinkTest, AnAgentWaitsForACoordinatorThatIsDown) {
  std::atomic<int> lost = 0;
  const auto agent = Agent::Start(options_, [&lost](Agent::End) { ++lost; });
  ASSERT_OK(agent);
  absl::SleepFor(absl::Milliseconds(1500));  // longer than the patience with three connections
  EXPECT_EQ(lost, 0);
  FakeCoordinator coordinator(path_);
  EXPECT_TRUE(coordinator.WaitForHeartbeat());
}

// An answer that is an error is an answer: another connection would not change it.
TEST_F(LinkTest, AnAgentThatIsRefusedDoesNotEnd) {
  FakeCoordinator coordinator(path_);
  coordinator.ForgetSecrets(true);
  std::atomic<int> lost = 0;
  const auto agent = Agent::Start(options_, [&lost](Agent::End) { ++lost; });
  ASSERT_OK(agent);
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return coordinator.Joins().size() > 3; }));
  absl::SleepFor(absl::Milliseconds(1500));
  EXPECT_EQ(lost, 0);
}

TEST(Accepts, UnixSocketsByAllTheirNames) {
  const TempDir folder;
  const std::string path = folder / "socket";
  EXPECT_FALSE(AcceptsConnections("unix:" + path, absl::Seconds(1)));
  const SilentServer silent(path);
  EXPECT_TRUE(AcceptsConnections("unix:" + path, absl::Seconds(1)));
  EXPECT_TRUE(AcceptsConnections("unix://" + path, absl::Seconds(1)));
  EXPECT_FALSE(AcceptsConnections("unix-abstract:nobody-is-here", absl::Seconds(1)));
  EXPECT_FALSE(AcceptsConnections("unix:/" + std::string(200, 'x'), absl::Seconds(1)));
}

TEST(Accepts, TcpByNameAndNumber) {
  const Fd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(server.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = absl::StrCat(":", ntohs(address.sin_port));
  EXPECT_FALSE(AcceptsConnections("127.0.0.1" + port, absl::Seconds(1))) << "nobody listens yet";
  ASSERT_EQ(listen(server.get(), 8), 0);
  EXPECT_TRUE(AcceptsConnections("127.0.0.1" + port, absl::Seconds(1)));
  EXPECT_TRUE(AcceptsConnections("ipv4:127.0.0.1" + port, absl::Seconds(1)));
  // A machine without /etc/hosts knows no localhost.
  EXPECT_EQ(AcceptsConnections("dns:///localhost" + port, absl::Seconds(1)),
            gethostbyname("localhost") != nullptr);
  EXPECT_FALSE(AcceptsConnections("dns:///no-such-host.invalid" + port, absl::Seconds(1)));
  EXPECT_FALSE(AcceptsConnections("[::1]" + port, absl::Seconds(1))) << "only IPv4 is served";
}

TEST_F(LinkTest, RenewedFilesAreNoticedAndAWrongOneLeavesTheConnection) {
  EXPECT_FALSE(Link::Open(options_).value()->HasOtherFiles()) << "no TLS";
  ASSERT_TRUE(MakeCertificates(folder_.path()));
  options_.tls.set_certificate_file((folder_ / "client.crt").string());
  options_.tls.set_private_key_file((folder_ / "client.key").string());
  options_.tls.set_client_ca_file((folder_ / "ca.crt").string());
  auto link = Link::Open(options_).value();
  EXPECT_FALSE(link->HasOtherFiles());
  // Half of a renewal: the key is not that of the certificate.
  std::filesystem::rename(folder_ / "stranger.crt", folder_ / "client.crt");
  EXPECT_TRUE(link->HasOtherFiles());
  EXPECT_FALSE(link->Reopen().ok());
  EXPECT_TRUE(link->HasOtherFiles()) << "they are not in use";
  std::filesystem::rename(folder_ / "stranger.key", folder_ / "client.key");
  EXPECT_OK(link->Reopen());
  EXPECT_FALSE(link->HasOtherFiles());
}

}  // namespace
}  // namespace nsa::agent
