#include "server/watch/metrics_http.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsHttp, RefusesAPortThatIsTakenAndNamesIt) {
  const auto text = [] { return std::string("x 1\n"); };
  const auto healthy = [] { return std::string(); };
  const auto first = MetricsHttp::Start("127.0.0.1:0", text, healthy);
  ASSERT_OK(first.status());
  EXPECT_THAT(MetricsHttp::Start((*first)->address(), text, healthy).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr((*first)->address())));
}

class MetricsHttpTest : public ::testing::Test {
 protected:
  MetricsHttpTest() {
    auto started = MetricsHttp::Start(
        "127.0.0.1:0", [] { return std::string("x 1\n"); }, [this] { return problem_; });
    EXPECT_OK(started.status());
    if (started.ok()) http_ = *std::move(started);
  }

  std::string Port() const { return http_->address().substr(http_->address().rfind(':')); }
  std::string Ask(const std::string& path, const std::string& host) const {
    return HttpRead(HttpSend(http_->address(),
                             absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n")));
  }

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
  const auto http = MetricsHttp::Start(
      "127.0.0.1:0", [] { return std::string("x 1\n"); }, [] { return std::string(); }, nullptr,
      "https://NSA.example.org:8443/page/");
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

TEST_F(MetricsHttpTest, FortyHalfRequestsDelayNobodyAndAreClosedInTime) {
  std::vector<Fd> half;
  const absl::Duration begin = RealClock().Monotonic();
  for (int i = 0; i < 40; ++i) {
    half.push_back(HttpSend(http_->address(), "GET /metrics HTTP/1.1\r\nHost: loc"));
    ASSERT_TRUE(half.back().valid());
  }
  for (const char* path : {"/healthz", "/metrics"}) {
    const absl::Duration asked = RealClock().Monotonic();
    EXPECT_THAT(Ask(path, "localhost"), HasSubstr("200 OK"));
    EXPECT_LT(RealClock().Monotonic() - asked, absl::Seconds(2));
  }
  for (const Fd& fd : half) HttpRead(fd);
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(6));
}

}  // namespace
}  // namespace nsa::server
