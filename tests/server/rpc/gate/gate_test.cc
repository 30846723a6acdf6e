#include "server/rpc/gate/gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/tls_files.h"
#include "common/rpc/x509.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/gate/callers.h"
#include "server/rpc/gate/frame_watch.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

constexpr char kGreeting[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// A DATA frame.
std::string Data(size_t length) {
  std::string frame(9 + length, 'x');
  for (int i = 0; i < 3; ++i) frame[i] = static_cast<char>(length >> (8 * (2 - i)));
  frame.replace(3, 6, std::string("\0\0\0\0\0\1", 6));
  return frame;
}

std::string NameOfPeer(int fd) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  const size_t length = size - offsetof(sockaddr_un, sun_path);
  return length < 2 ? "" : std::string(address.sun_path + 1, length - 1);
}

// Waits at most 10 s for bytes; "" at the end.
std::string Receive(int fd) {
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, 10'000) != 1) return "nothing came";
  std::string bytes(1 << 16, '\0');
  const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

// A gate with the test behind it instead of gRPC.
class GateTest : public ::testing::Test {
 protected:
  void Start(GateLimits limits = {}, TlsFiles tls = {}) {
    auto gate = Gate::Open({.address = address_,
                            .tls = std::move(tls),
                            .limits = limits,
                            .ended = [this](const char* reason) {
                              const MutexLock lock(&mutex_);
                              ++ended_[reason];
                            }});
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    gate_->Start([this](Fd connection) {
      const MutexLock lock(&mutex_);
      handed_on_.push_back(std::move(connection));
    });
  }

  // `from`: another address of this machine is another neighbour.
  Fd Connect(const char* from = "127.0.0.1") {
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    EXPECT_EQ(inet_pton(AF_INET, from, &address.sin_addr), 1);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    int port = 0;
    const std::string text = gate_->address();
    EXPECT_TRUE(absl::SimpleAtoi(text.substr(text.rfind(':') + 1), &port));
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return Fd();
    }
    return fd;
  }
  static void Say(const Fd& fd, const std::string& bytes) {
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  int HandedOn() {
    const MutexLock lock(&mutex_);
    return static_cast<int>(handed_on_.size());
  }
  int Behind(int i) {
    const MutexLock lock(&mutex_);
    return handed_on_[i].get();
  }
  int Ended(const std::string& reason) {
    const MutexLock lock(&mutex_);
    return ended_[reason];
  }
  // A connection that has greeted and is handed on.
  Fd Greeted() { return Greet(Connect()); }
  Fd Greet(Fd fd) {
    const int before = HandedOn();
    Say(fd, kGreeting);
    EXPECT_TRUE(Within(absl::Seconds(20), [&] { return HandedOn() == before + 1; }));
    return fd;
  }
  std::string PeerBehind(int i) { return absl::StrCat("unix-abstract:", NameOfPeer(Behind(i))); }
  void MakeKnown(int i) {
    const auto caller = FindGateCaller(PeerBehind(i));
    ASSERT_NE(caller, nullptr);
    caller->known = true;
  }

  std::string address_ = "127.0.0.1:0";
  Mutex mutex_;
  std::vector<Fd> handed_on_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> ended_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Gate> gate_;
};

TEST_F(GateTest, WhatItHandsOnHasTheAddressOfItsCaller) {
  Start();
  const Fd client = Greeted();
  sockaddr_in own{};
  socklen_t size = sizeof own;
  ASSERT_EQ(getsockname(client.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
  EXPECT_EQ(OriginOf(PeerBehind(0)), absl::StrCat("ipv4:127.0.0.1:", ntohs(own.sin_port)));
}

TEST_F(GateTest, CarriesBytesBothWaysAndTheEnd) {
  Start();
  Fd client = Greeted();
  EXPECT_EQ(Receive(Behind(0)), kGreeting);
  const std::string frame = Data(100);
  Say(client, frame.substr(0, 5));
  Say(client, frame.substr(5));
  std::string came;
  while (came.size() < frame.size()) came += Receive(Behind(0));
  EXPECT_EQ(came, frame);
  ASSERT_EQ(send(Behind(0), "answer", 6, 0), 6);
  EXPECT_EQ(Receive(client.get()), "answer");
  shutdown(client.get(), SHUT_WR);
  EXPECT_EQ(Receive(Behind(0)), "");
  ASSERT_EQ(send(Behind(0), "last", 4, 0), 4);
  shutdown(Behind(0), SHUT_RDWR);
  EXPECT_EQ(Receive(client.get()), "last");
  EXPECT_EQ(Receive(client.get()), "");
}

TEST_F(GateTest, HoldsLittleOfWhatIsNotRead) {
  Start();
  const Fd client = Greeted();
  constexpr size_t kMost = 64 << 20;
  const std::string frame = Data(16'000);
  // Nobody reads behind the gate: what is sent ends in the kernel's buffers.
  size_t sent = 0;
  pollfd writable{.fd = client.get(), .events = POLLOUT, .revents = 0};
  while (sent < kMost && poll(&writable, 1, 1'000) == 1) {
    const ssize_t part = send(client.get(), frame.data(), frame.size(), MSG_DONTWAIT);
    if (part > 0) sent += static_cast<size_t>(part);
    if (part != std::ssize(frame)) break;
  }
  EXPECT_LT(sent, kMost);
  // Then everything arrives.
  size_t came = 0;
  while (came < sizeof kGreeting - 1 + sent) {
    const std::string part = Receive(Behind(0));
    ASSERT_NE(part, "nothing came") << came << " of " << sent;
    came += part.size();
  }
}

TEST_F(GateTest, AStrangerMakesRoomAndAKnownClientStays) {
  Start({.connections = 6, .strangers = 4, .of_neighbour = 6, .strangers_of_neighbour = 4});
  const Fd known = Greeted();
  MakeKnown(0);
  Say(known, Data(1));  // the gate notes it with what a connection says next
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return gate_->counts().known == 1; }));
  const Fd speaking = Greeted();
  std::vector<Fd> idle;
  for (int i = 0; i < 40; ++i) idle.push_back(Connect());
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return Ended("displaced") == 40 - 3; }))
      << Ended("displaced");
  Say(known, Data(1));
  Say(speaking, Data(1));
  for (const int i : {0, 1}) EXPECT_EQ(Receive(Behind(i)).substr(0, 3), "PRI") << i;
  EXPECT_EQ(send(Behind(0), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(Receive(known.get()), "x");
  EXPECT_TRUE(Within(absl::Seconds(20),
                     [&] { return gate_->counts().known == 1 && gate_->counts().strangers == 4; }));
}

TEST_F(GateTest, WithOnlyKnownClientsANewOneIsRefused) {
  Start({.connections = 2, .strangers = 2, .of_neighbour = 2, .strangers_of_neighbour = 2});
  const Fd first = Greeted();
  const Fd second = Greeted();
  MakeKnown(0);
  MakeKnown(1);
  const Fd third = Connect();
  EXPECT_EQ(Receive(third.get()), "");
  EXPECT_EQ(Ended("full"), 1);
}

TEST_F(GateTest, WhoSaysNothingIsEnded) {
  Start({.greeting = absl::Milliseconds(300), .silence = absl::Milliseconds(1'500)});
  const Fd silent = Connect();
  const Fd half = Connect();
  Say(half, "PRI * HT");
  const Fd idle = Greeted();
  const Fd known = Greeted();
  MakeKnown(1);
  EXPECT_EQ(Receive(silent.get()), "");
  EXPECT_EQ(Receive(half.get()), "");
  EXPECT_EQ(Receive(idle.get()), "");
  EXPECT_EQ(Ended("silent"), 2);
  EXPECT_EQ(Ended("idle"), 1);
  pollfd still{.fd = known.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&still, 1, 0), 0);
}

TEST_F(GateTest, AFloodEndsItsConnectionOnly) {
  Start();
  const Fd good = Greeted();
  const Fd bad = Greeted();
  std::string flood;
  for (int i = 0; i < 1'000; ++i) flood += std::string("\0\0\0\4\0\0\0\0\0", 9);  // SETTINGS
  send(bad.get(), flood.data(), flood.size(), MSG_NOSIGNAL);
  EXPECT_EQ(Receive(bad.get()), "");
  EXPECT_EQ(Ended("settings"), 1);
  Receive(Behind(0));
  Say(good, Data(10));
  EXPECT_EQ(Receive(Behind(0)), Data(10));
}

TEST_F(GateTest, OfTooManyOpenStreamsTheGreediestStrangerIsEnded) {
  Start({.open_streams = 10});
  const auto headers = [](int stream) {
    return std::string("\0\0\1\1\4\0\0\0", 8) + static_cast<char>(stream) + "x";
  };
  std::vector<Fd> clients;
  for (const int streams : {12, 2, 12}) {
    clients.push_back(Greeted());
    if (clients.size() == 3) MakeKnown(2);
    std::string all;
    for (int i = 0; i < streams; ++i) all += headers(2 * i + 1);
    Say(clients.back(), all);
  }
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return Ended("open_streams") == 1; }));
  for (const int i : {1, 2}) {
    ASSERT_EQ(send(Behind(i), "x", 1, MSG_NOSIGNAL), 1);
    EXPECT_EQ(Receive(clients[i].get()), "x") << i;
  }
  EXPECT_EQ(Receive(clients[0].get()), "");
}

// A client that has a certificate of the authority or, without a name, none.
class TlsClient {
 public:
  TlsClient(Fd fd, const TempDir& folder, const std::string& name) : fd_(std::move(fd)) {
    if (!name.empty()) {
      for (const auto& [use, ending] : {std::pair(&SSL_CTX_use_certificate_file, ".crt"),
                                        std::pair(&SSL_CTX_use_PrivateKey_file, ".key")}) {
        EXPECT_EQ(use(context_.get(), (folder / (name + ending)).c_str(), SSL_FILETYPE_PEM), 1);
      }
    }
    constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_alpn_protos(ssl_.get(), kHttp2, sizeof kHttp2);
    SSL_set_fd(ssl_.get(), fd_.get());
    SSL_set_connect_state(ssl_.get());
  }
  // Waits at most two seconds for each answer. A client of TLS 1.3 does not wait to be accepted.
  bool Greet() {
    constexpr timeval kPatience{.tv_sec = 2, .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    return SSL_do_handshake(ssl_.get()) == 1 &&
           SSL_write(ssl_.get(), kGreeting, sizeof kGreeting - 1) > 0;
  }

 private:
  const Fd fd_;
  const std::unique_ptr<SSL_CTX, x509::Free<SSL_CTX_free>> context_{
      SSL_CTX_new(TLS_client_method())};
  std::unique_ptr<SSL, x509::Free<SSL_free>> ssl_;
};

class TlsGateTest : public GateTest {
 protected:
  TlsGateTest() { signal(SIGPIPE, SIG_IGN); }

  void Start(const GateLimits& limits) {
    ASSERT_TRUE(MakeCertificates(folder_.path()));
    v1::TlsConfig config;
    config.set_certificate_file((folder_ / "server.crt").string());
    config.set_private_key_file((folder_ / "server.key").string());
    config.set_client_ca_file((folder_ / "ca.crt").string());
    const auto files = ReadTlsFiles(config, absl::Now());
    ASSERT_TRUE(files.ok()) << files.status();
    GateTest::Start(limits, *files);
  }
  TlsClient From(const char* address, const std::string& name) {
    return TlsClient(Connect(address), folder_, name);
  }

  const TempDir folder_;
};

TEST_F(TlsGateTest, HandshakesOfOneAddressWaitWhenTheyHaveHadTheirShare) {
  Start({.handshakes = {.of_neighbour = 1e-6, .of_neighbour_burst = 0.3, .all_burst = 1'000},
         .greeting = absl::Seconds(3)});
  // Each costs the gate some tenths of a millisecond, or some milliseconds under a sanitizer.
  int done = 0;
  for (int i = 0; i < 5'000 && gate_->counts().handshakes < absl::Milliseconds(300); ++i) {
    done += From("127.0.0.2", "client").Greet() ? 1 : 0;
  }
  EXPECT_GT(done, 0);
  EXPECT_GE(gate_->counts().handshakes, absl::Milliseconds(300));
  EXPECT_TRUE(
      Within(absl::Seconds(20),
             [&] { return !From("127.0.0.2", "client").Greet() && Ended("handshakes") > 0; }))
      << "the share is used up after " << done;
  const auto before = HandedOn();
  TlsClient other = From("127.0.0.3", "client");
  EXPECT_TRUE(other.Greet());
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return HandedOn() == before + 1; }));
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return gate_->counts().strangers == 1; }));
}

TEST_F(TlsGateTest, ACertificateOfAnotherAuthorityIsRefused) {
  Start({});
  TlsClient stranger = From("127.0.0.1", "stranger");
  stranger.Greet();
  TlsClient nobody = From("127.0.0.1", "");
  nobody.Greet();
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return Ended("tls") == 2; }));
  TlsClient client = From("127.0.0.1", "client");
  EXPECT_TRUE(client.Greet());
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return HandedOn() == 1; }));
}

TEST_F(GateTest, ClosesThePortAndKeepsItsConnections) {
  Start();
  const Fd client = Greeted();
  gate_->StopAccepting();
  EXPECT_FALSE(Connect().valid());
  Receive(Behind(0));
  Say(client, Data(10));
  EXPECT_EQ(Receive(Behind(0)), Data(10));
  ASSERT_EQ(send(Behind(0), "bye", 3, 0), 3);
  shutdown(Behind(0), SHUT_RDWR);
  gate_.reset();
  EXPECT_EQ(Receive(client.get()), "bye");
}

TEST_F(GateTest, ThePortIsItsOwn) {
  Start();
  const auto second =
      Gate::Open({.address = gate_->address(), .tls = {}, .limits = {}, .ended = {}});
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()),
              ::testing::HasSubstr("Address already in use"));
}

// Connects to a unix socket.
Fd ConnectTo(const sockaddr_un& address) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  return connect(fd.get(), to, sizeof address) == 0 ? std::move(fd) : Fd();
}

// A process of another user with connections that have greeted.
class OtherUser {
 public:
  OtherUser(uid_t uid, const sockaddr_un& address, int connections) : pid_(fork()) {
    if (pid_ != 0) return;  // this process, or there is none
    if (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) _exit(1);
    for (int i = 0; i < connections; ++i) {
      const int fd = ConnectTo(address).Release();
      if (fd < 0) _exit(1);
      send(fd, kGreeting, sizeof kGreeting - 1, MSG_NOSIGNAL);  // fails if the gate refuses it
    }
    while (true) pause();
  }
  ~OtherUser() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

 private:
  const pid_t pid_;
};

class UnixGateTest : public GateTest {
 protected:
  UnixGateTest() {
    path_.copy(at_.sun_path, sizeof at_.sun_path - 1);
    address_ = absl::StrCat("unix:", path_);
  }
  // As an administrator might, by an ACL. False when this process cannot become another user.
  bool LetOtherUsersIn() {
    return geteuid() == 0 && chmod(folder_.path().c_str(), 0711) == 0 &&
           chmod(path_.c_str(), 0666) == 0;
  }

  const TempDir folder_;
  const std::string path_ = (folder_ / "socket").string();
  sockaddr_un at_{.sun_family = AF_UNIX, .sun_path = {}};
};

TEST_F(UnixGateTest, OnlyItsOwnerMayOpenItAndWhatItHandsOnHasTheUserOfItsCaller) {
  std::ofstream(path_) << "of an earlier process";
  Start();
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode, S_IFSOCK | 0600u);
  const Fd client = Greet(ConnectTo(at_));
  EXPECT_THAT(OriginOf(PeerBehind(0)),
              ::testing::MatchesRegex(absl::StrCat("unix:", geteuid(), "(-[0-9]+)?")));
  EXPECT_TRUE(IsLocal(OriginOf(PeerBehind(0))));
  if (!LetOtherUsersIn()) GTEST_SKIP() << "only root can become another user";
  const OtherUser other(4'321, at_, 1);
  ASSERT_TRUE(Within(absl::Seconds(20), [&] { return HandedOn() == 2; }));
  EXPECT_THAT(OriginOf(PeerBehind(1)), ::testing::MatchesRegex("unix:4321(-[0-9]+)?"));
  EXPECT_TRUE(IsLocal(OriginOf(PeerBehind(1))));
}

TEST_F(UnixGateTest, AUserWithTooManyConnectionsLocksOutNobodyElse) {
  Start({.connections = 6, .strangers = 6, .of_neighbour = 3, .strangers_of_neighbour = 3});
  if (!LetOtherUsersIn()) GTEST_SKIP() << "only root can become another user";
  const OtherUser greedy(4'321, at_, 3);
  ASSERT_TRUE(Within(absl::Seconds(20), [&] { return HandedOn() == 3; }));
  for (int i = 0; i < 3; ++i) MakeKnown(i);
  const OtherUser again(4'321, at_, 2);
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return Ended("full") == 2; }));
  const OtherUser other(4'322, at_, 3);
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return HandedOn() == 6; }));
  const Fd own = Greet(ConnectTo(at_));
  EXPECT_EQ(HandedOn(), 7) << "this process is always let in";
  EXPECT_EQ(Ended("displaced"), 0);
}

TEST_F(UnixGateTest, WhoSaysNothingIsEnded) {
  Start({.greeting = absl::Milliseconds(300), .silence = absl::InfiniteDuration()});
  const Fd silent = ConnectTo(at_);
  EXPECT_EQ(Receive(silent.get()), "");
  EXPECT_EQ(Ended("silent"), 1);
}

TEST_F(UnixGateTest, ItsCallersAreNotLimited) {
  Start();
  const Fd client = Greet(ConnectTo(at_));
  std::string all;
  for (int i = 0; i < 1'000; ++i) all += std::string("\0\0\0\4\0\0\0\0\0", 9);  // SETTINGS
  Say(client, all);
  std::string came;
  while (came.size() < sizeof kGreeting - 1 + all.size()) {
    const std::string part = Receive(Behind(0));
    ASSERT_NE(part, "nothing came");
    ASSERT_NE(part, "");
    came += part;
  }
  EXPECT_EQ(came, kGreeting + all);
}

TEST_F(UnixGateTest, ItsFileGoesAndItsConnectionsStay) {
  Start();
  Fd client = Greet(ConnectTo(at_));
  Receive(Behind(0));
  gate_->StopAccepting();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(ConnectTo(at_).valid());
  Say(client, Data(10));
  EXPECT_EQ(Receive(Behind(0)), Data(10));
  ASSERT_EQ(send(Behind(0), "bye", 3, 0), 3);
  EXPECT_EQ(Receive(client.get()), "bye");
  client.Reset();
  EXPECT_EQ(Receive(Behind(0)), "") << "the client has gone";
}

TEST_F(UnixGateTest, WithoutAFolderItSaysWhy) {
  const auto gate =
      Gate::Open({.address = "unix:/nonexistent/socket", .tls = {}, .limits = {}, .ended = {}});
  EXPECT_TRUE(absl::IsUnavailable(gate.status()));
  EXPECT_THAT(std::string(gate.status().message()),
              ::testing::HasSubstr("/nonexistent/socket cannot be listened on (No such file"));
}

TEST(GateLimits, LeaveDescriptorsForTheStore) {
  const GateLimits tcp = GateLimits::OfTcp();
  const GateLimits local = GateLimits::OfUnixSocket();
  rlimit descriptors{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  EXPECT_LE(3 * (tcp.connections + local.connections),
            static_cast<int64_t>(descriptors.rlim_cur) * 3 / 5);
  EXPECT_LE(tcp.strangers, tcp.connections / 2);
  EXPECT_LE(local.of_neighbour, local.connections / 2) << "two users have room beside each other";
}

}  // namespace
}  // namespace nsa::server
