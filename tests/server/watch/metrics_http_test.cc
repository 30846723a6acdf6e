#include "server/watch/metrics_http.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/watch/http_front.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

MetricsHttp::Options At(const std::string& address) {
  return {.address = address,
          .text = [] { return std::string("x 1\n"); },
          .problem = [] { return std::string(); },
          .pages = nullptr,
          .page_url = "",
          .tls = std::nullopt,
          .may_read = nullptr};
}

TEST(MetricsHttp, RefusesAPortThatIsTakenAndNamesIt) {
  const FakeClock clock;
  const auto first = MetricsHttp::Start(At("127.0.0.1:0"), clock);
  ASSERT_OK(first.status());
  EXPECT_THAT(MetricsHttp::Start(At((*first)->address()), clock).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr((*first)->address())));
}

// Nobody's time is up unless a test advances the clock: an answer was not waited for.
class MetricsHttpTest : public ::testing::Test {
 protected:
  MetricsHttpTest() {
    MetricsHttp::Options options = At("127.0.0.1:0");
    options.problem = [this] { return problem_; };
    auto started = MetricsHttp::Start(std::move(options), clock_);
    EXPECT_OK(started.status());
    if (started.ok()) http_ = *std::move(started);
  }

  std::string Port() const { return http_->address().substr(http_->address().rfind(':')); }
  std::string Ask(const std::string& path, const std::string& host) const {
    return HttpRead(HttpSend(http_->address(),
                             absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n")));
  }

  FakeClock clock_;
  std::string problem_;  // set before a request
  std::unique_ptr<MetricsHttp> http_;
};

TEST_F(MetricsHttpTest, HealthzNamesTheProblem) {
  EXPECT_THAT(Ask("/healthz", "localhost"), AllOf(HasSubstr(" 200 "), HasSubstr("ok\n")));
  problem_ = "the store has failed";
  EXPECT_THAT(Ask("/healthz", "localhost"),
              AllOf(HasSubstr(" 503 "), HasSubstr("the store has failed\n")));
}

TEST_F(MetricsHttpTest, AnswersToItsOwnNamesAndToNoOther) {
  char machine[256] = {};
  ASSERT_EQ(gethostname(machine, sizeof(machine) - 1), 0);
  for (const std::string host : {"127.0.0.1", "localhost", "LocalHost", "[::1]", "10.1.2.3",
                                 static_cast<const char*>(machine)}) {
    for (const std::string& port : {std::string(), Port()}) {
      EXPECT_THAT(Ask("/metrics", host + port), AllOf(HasSubstr("200 OK"), HasSubstr("x 1\n")))
          << host << port;
    }
  }
  // A page of another site whose name was made to point to this machine.
  for (const std::string host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                                 "", "[", "1", "0x7f.1"}) {
    for (const char* path : {"/metrics", "/healthz", "/"}) {
      const std::string answer = Ask(path, host + Port());
      EXPECT_THAT(answer, AllOf(HasSubstr(" 421 "), HasSubstr("localhost"), HasSubstr(machine)))
          << host << path;
      EXPECT_THAT(answer, Not(HasSubstr("x 1"))) << host << path;
    }
  }
}

TEST_F(MetricsHttpTest, LoopbackNamesMayHaveAnyPort) {
  for (const char* host : {"127.0.0.1:1", "localhost:9000", "[::1]:9000"}) {
    EXPECT_THAT(Ask("/metrics", host), HasSubstr("200 OK")) << host;
  }
}

TEST(MetricsHttp, AnswersToTheHostOfPageUrl) {
  const FakeClock clock;
  MetricsHttp::Options options = At("127.0.0.1:0");
  options.page_url = "https://NSA.example.org:8443/page/";
  const auto http = MetricsHttp::Start(std::move(options), clock);
  ASSERT_OK(http.status());
  const auto ask = [&](const std::string& host) {
    return HttpRead(HttpSend((*http)->address(),
                             absl::StrCat("GET /metrics HTTP/1.1\r\nHost: ", host, "\r\n\r\n")));
  };
  for (const char* host : {"nsa.example.org", "nsa.example.org:8443", "Nsa.Example.org:9"}) {
    EXPECT_THAT(ask(host), HasSubstr("200 OK")) << host;
  }
  for (const char* host : {"example.org", "x.nsa.example.org", "nsa.example.org.evil.example"}) {
    EXPECT_THAT(ask(host), AllOf(HasSubstr(" 421 "), HasSubstr("page_url"))) << host;
  }
}

// The server has neither closed it nor sent something.
bool IsOpen(const Fd& fd) {
  char byte = 0;
  return recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

TEST_F(MetricsHttpTest, FortyHalfRequestsDelayNobodyAndAreClosedInTime) {
  std::vector<Fd> half;
  for (int i = 0; i < 40; ++i) {
    half.push_back(HttpSend(http_->address(), "GET /metrics HTTP/1.1\r\nHost: loc"));
    ASSERT_TRUE(half.back().valid());
  }
  for (const char* path : {"/healthz", "/metrics"}) {
    EXPECT_THAT(Ask(path, "localhost"), HasSubstr("200 OK"));
  }
  for (const Fd& fd : half) EXPECT_TRUE(IsOpen(fd));
  clock_.Advance(absl::Seconds(6));
  for (const Fd& fd : half) EXPECT_EQ(HttpRead(fd), "");
}

// More than there are threads, and each as long as it may be.
TEST_F(MetricsHttpTest, RequestsThatRenewThemselvesHoldNeitherHealthNorMetrics) {
  std::vector<Fd> half;
  for (int i = 0; i < 300; ++i) {
    half.push_back(HttpSend(http_->address(), "GET / HTTP/1.1\r\nHost: localhost\r\n"));
    ASSERT_TRUE(half.back().valid());
  }
  for (int round = 0; round < 3; ++round) {
    for (const Fd& fd : half) send(fd.get(), "X: y\r\n", 6, MSG_NOSIGNAL);
    for (const char* path : {"/healthz", "/metrics", "/"}) {
      EXPECT_THAT(Ask(path, "localhost"), HasSubstr("HTTP/1.1 ")) << path;
    }
  }
}

TEST_F(MetricsHttpTest, ABodyInChunksIsRefused) {
  EXPECT_THAT(HttpRead(HttpSend(http_->address(),
                                "POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                                "chunked\r\n\r\n5\r\n[1,2,\r\n0\r\n\r\n")),
              HasSubstr("HTTP/1.1 411 "));
}

// Its reply is not lost to a reset, although nobody read the body.
TEST_F(MetricsHttpTest, ABodyThatIsTooLargeIsRefusedInWords) {
  for (int i = 0; i < 20; ++i) {
    const Fd fd = HttpSend(http_->address(),
                           absl::StrCat("POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                                        "200000\r\n\r\n",
                                        std::string(200'000, 'x')));
    EXPECT_THAT(HttpRead(fd), HasSubstr("HTTP/1.1 413 "));
  }
}

// Streams, requests that wait for a thread and replies that nobody reads.
TEST_F(MetricsHttpTest, WhoeverFillsTheServerHoldsNeitherHealthNorMetrics) {
  std::vector<Fd> held;
  for (int i = 0; i < 700; ++i) {
    held.push_back(HttpSend(http_->address(), i % 2 == 0 ? "GET / HTTP/1.1\r\n\r\n" : "GET "));
    ASSERT_TRUE(held.back().valid());
  }
  for (const char* path : {"/healthz", "/metrics"}) {
    EXPECT_THAT(Ask(path, "localhost"), HasSubstr("200 OK")) << path;
  }
}

// Sockets of this process that other users of the machine can connect to.
int ListeningSockets() {
  int found = 0;
  for (int fd = 0; fd < 1'024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    found += getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
  }
  return found;
}

// One behind it would have threads that nobody guards.
TEST_F(MetricsHttpTest, ThePortThatIsAnnouncedIsTheOnlyOne) {
  EXPECT_THAT(Ask("/", "localhost"), HasSubstr(" 404 "));
  EXPECT_EQ(ListeningSockets(), 1);
}

TEST_F(MetricsHttpTest, HeadHasNoBody) {
  for (const char* path : {"/healthz", "/metrics", "/metrics?format=text"}) {
    const std::string answer = HttpRead(HttpSend(
        http_->address(), absl::StrCat("HEAD ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n")));
    EXPECT_THAT(answer, HasSubstr(" 200 OK\r\n"));
    EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
  }
}

TEST(HttpFront, KnowsAWholeRequest) {
  std::string refusal;
  EXPECT_EQ(WholeRequest("GET / HTTP/1.1\r\nHost: x\r\n", &refusal), 0u);
  EXPECT_EQ(WholeRequest("GET / HTTP/1.0\r\n\r\nrest", &refusal), 18u);
  const std::string post = "POST / HTTP/1.1\r\ncontent-LENGTH: 3\r\n\r\n";
  EXPECT_EQ(WholeRequest(post + "ab", &refusal), 0u);
  EXPECT_EQ(WholeRequest(post + "abc", &refusal), post.size() + 3);
  EXPECT_EQ(refusal, "");
  for (const auto& [header, status] :
       {std::pair("Transfer-Encoding: chunked", "411"), std::pair("Content-Length: 20000", "413"),
        std::pair("Content-Length: -1", "400")}) {
    refusal.clear();
    const std::string request = absl::StrCat("POST / HTTP/1.1\r\n", header, "\r\n\r\n");
    EXPECT_EQ(WholeRequest(request, &refusal), 0u);
    EXPECT_THAT(refusal, HasSubstr(absl::StrCat(" ", status, " ")));
  }
}

}  // namespace
}  // namespace nsa::server
