// The page's port over TLS: whose handshakes take how much of its thread.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/rpc/tls_files.h"
#include "common/rpc/x509.h"
#include "gtest/gtest.h"
#include "server/watch/http_front.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

class HttpFrontTlsTest : public ::testing::Test {
 protected:
  HttpFrontTlsTest() { signal(SIGPIPE, SIG_IGN); }

  // Asks those without a token for one.
  void Start(const HandshakeShares::Limits& handshakes) {
    ASSERT_TRUE(MakeCertificates(folder_.path()));
    v1::TlsConfig config;
    config.set_certificate_file((folder_ / "server.crt").string());
    config.set_private_key_file((folder_ / "server.key").string());
    config.set_client_ca_file((folder_ / "ca.crt").string());
    const auto files = ReadTlsFiles(config, absl::Now());
    ASSERT_OK(files.status());
    auto tls = TlsServer::MakeForHttp(*files);
    ASSERT_OK(tls.status());
    Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    socklen_t size = sizeof address_;
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address_), size), 0);
    ASSERT_EQ(listen(listener.get(), 64), 0);
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address_), &size);
    HttpFront::Options options;
    options.listeners.push_back(std::move(listener));
    options.tls = *std::move(tls);
    options.quick = [](std::string_view head) -> std::string {
      if (absl::StrContains(absl::string_view(head.data(), head.size()), "token")) return "";
      return "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    };
    options.server = [](Fd, std::string) { return false; };  // answered with 503
    options.slow = [](std::string_view) { return std::string(); };
    options.limits.handshakes = handshakes;
    front_ = std::make_unique<HttpFront>(std::move(options), clock_);
  }

  // The status of what is answered to a request from this address; 0: nothing within two seconds.
  int Ask(const std::string& from, const std::string& header = "") {
    const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in own{};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, from.c_str(), &own.sin_addr);
    constexpr timeval kPatience{.tv_sec = 2, .tv_usec = 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&own), sizeof own) != 0) return 0;
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address_), sizeof address_) != 0) return 0;
    const std::unique_ptr<SSL, x509::Free<SSL_free>> ssl(SSL_new(context_.get()));
    SSL_set_fd(ssl.get(), fd.get());
    if (SSL_connect(ssl.get()) != 1) return 0;
    const std::string request = absl::StrCat("GET / HTTP/1.1\r\n", header, "\r\n");
    SSL_write(ssl.get(), request.data(), static_cast<int>(request.size()));
    char reply[64] = "";
    const int got = SSL_read(ssl.get(), reply, sizeof reply - 1);
    return got < 12 ? 0 : std::stoi(std::string(reply + 9, 3));
  }

  const TempDir folder_;
  sockaddr_in address_{};
  const std::unique_ptr<SSL_CTX, x509::Free<SSL_CTX_free>> context_{
      SSL_CTX_new(TLS_client_method())};
  const RealClock clock_;
  std::unique_ptr<HttpFront> front_;
};

TEST_F(HttpFrontTlsTest, HandshakesOfOneAddressWaitWhenTheyHaveHadTheirShare) {
  Start({.of_neighbour = 1e-6, .of_neighbour_burst = 0.3, .all_burst = 1'000});
  int done = 0;
  while (done < 5'000 && Ask("127.0.0.2") == 401) ++done;
  EXPECT_GT(done, 0);
  EXPECT_LT(done, 5'000);
  EXPECT_EQ(Ask("127.0.0.3"), 401);
}

TEST_F(HttpFrontTlsTest, ManyStrangersLeaveAnAddressWithATokenItsShare) {
  Start({.of_neighbour = 1, .of_neighbour_burst = 1'000, .all = 1e-6, .all_burst = 0.3});
  EXPECT_EQ(Ask("127.0.0.9", "token: x\r\n"), 503) << "the test's server takes nothing";
  int done = 0;
  while (done < 5'000 && Ask(absl::StrCat("127.0.1.", 1 + done % 100)) == 401) ++done;
  EXPECT_LT(done, 5'000);
  EXPECT_EQ(Ask("127.0.0.9", "token: x\r\n"), 503) << "it has shown one before";
}

}  // namespace
}  // namespace nsa::server
