// Requests that send something. Those that read are tested with the worker's data.
#include "common/http/http.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "common/base/clock.h"
#include "common/http/retry_after.h"
#include "gmock/gmock.h"
#include "tests/testing/net/data_server.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Request = DataServer::Request;
using Reply = DataServer::Reply;

class PostTest : public ::testing::Test {
 protected:
  HttpReply Post(const DataServer& server, const std::string& body,
                 absl::Duration total = absl::Seconds(20)) {
    HttpClient client(&cancelled_, &bytes_);
    return client.Post({.url = server.url("/hook"),
                        .any_address = true,
                        .most_bytes = 100,
                        .stall = absl::Seconds(10),
                        .total = total,
                        .headers = {"Content-Type: application/json", "X-NSA-Delivery: 7"}},
                       body);
  }

  std::atomic<bool> cancelled_ = false;
  std::atomic<int64_t> bytes_ = 0;
};

TEST_F(PostTest, SendsTheBodyAndTheHeadersAndReadsTheAnswer) {
  DataServer server([](const Request&) {
    return Reply{.status = 503, .headers = {{"Retry-After", "9"}}, .body = "later"};
  });
  const HttpReply reply = Post(server, "{\"a\": \"ü\"}");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.body, "later");
  EXPECT_EQ(reply.retry_after, "9");
  ASSERT_THAT(server.seen(), SizeIs(1));
  const Request request = server.seen()[0];
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.body, "{\"a\": \"ü\"}");
  EXPECT_EQ(request.header("content-type"), "application/json");
  EXPECT_EQ(request.header("x-nsa-delivery"), "7");
}

TEST_F(PostTest, ABodyOfTwoMegabytesArrivesWithoutAnInterimAnswer) {
  DataServer server([](const Request&) { return Reply{}; });
  const absl::Duration begin = RealClock().Monotonic();
  EXPECT_EQ(Post(server, std::string(2 << 20, 'x')).status, 200);
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(20));
  ASSERT_THAT(server.seen(), SizeIs(1));
  EXPECT_EQ(server.seen()[0].header("expect"), "");
  EXPECT_THAT(server.seen()[0].body, SizeIs(2 << 20));
}

TEST_F(PostTest, HandsTheBodyOnInPartsUntilNobodyWantsMore) {
  DataServer server([](const Request& request) {
    return Reply{.status = request.body == "no" ? 400 : 200, .body = std::string(2 << 20, 'x')};
  });
  size_t most = 0, taken = 0;
  HttpClient client(&cancelled_, &bytes_);
  const auto post = [&](const std::string& body) {
    return client.Post({.url = server.url("/"),
                        .any_address = true,
                        .most_bytes = 5,
                        .stall = absl::Seconds(10),
                        .on_body =
                            [&](std::string_view part) {
                              taken += part.size();
                              return taken < most;
                            }},
                       body);
  };
  most = 1 << 30;
  const HttpReply whole = post("yes");
  EXPECT_EQ(taken, size_t{2} << 20);
  EXPECT_TRUE(whole.status == 200 && whole.fault.empty() && whole.body.empty()) << whole.fault;
  most = 1;
  EXPECT_EQ(post("yes").fault, "cancelled");
  EXPECT_LT(taken, size_t{4} << 20);
  taken = 0;
  EXPECT_EQ(post("no").body, "xxxxx") << "an error is read as without it";
  EXPECT_EQ(taken, 0u);
}

TEST_F(PostTest, FollowsNoRedirect) {
  DataServer server([](const Request&) {
    return Reply{.status = 307, .headers = {{"Location", "/elsewhere"}}};
  });
  EXPECT_EQ(Post(server, "{}").status, 307);
  EXPECT_THAT(server.seen(), SizeIs(1));
}

TEST_F(PostTest, IsSentOnceWhenTheServerHangsUp) {
  DataServer server([](const Request&) { return Reply{.hang_up = true}; });
  const HttpReply reply = Post(server, "{}");
  EXPECT_EQ(reply.status, 0);
  EXPECT_NE(reply.fault, "");
  EXPECT_THAT(server.seen(), SizeIs(1));
}

TEST_F(PostTest, ANetworkFaultNamesAProxyThatIsNotUsed) {
  const auto with = [](const char* name, const char* proxy) {
    for (const char* other : {"http_proxy", "all_proxy", "ALL_PROXY"}) unsetenv(other);
    if (*name != '\0') setenv(name, proxy, 1);
  };
  DataServer server(
      [](const Request& request) { return Reply{.status = 503, .hang_up = request.number <= 4}; });
  with("", "");
  EXPECT_THAT(Post(server, "{}").fault, Not(HasSubstr("proxy")));
  with("http_proxy", "http://ada:secret@proxy.example:1");
  EXPECT_THAT(Post(server, "{}").fault,
              AllOf(HasSubstr("http_proxy is set and not used"), Not(HasSubstr("secret"))));
  with("ALL_PROXY", "http://proxy.example:1");
  EXPECT_THAT(Post(server, "{}").fault, HasSubstr("ALL_PROXY is set and not used"));
  with("all_proxy", "");
  EXPECT_THAT(Post(server, "{}").fault, Not(HasSubstr("proxy"))) << "it names none";
  with("http_proxy", "http://proxy.example:1");
  EXPECT_EQ(Post(server, "{}").fault, "") << "there was an answer";
  with("", "");
}

TEST_F(PostTest, EndsAfterItsTotalTimeAlthoughBytesArrive) {
  DataServer server(
      [](const Request&) { return Reply{.body = "two halves", .stall = absl::Seconds(60)}; });
  const absl::Duration begin = RealClock().Monotonic();
  const HttpReply reply = Post(server, "{}", absl::Milliseconds(300));
  EXPECT_THAT(reply.fault, HasSubstr("timed out"));
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(8));
}

TEST_F(PostTest, IsNotSentToALoopbackAddressUnlessThatIsAllowed) {
  DataServer server([](const Request&) { return Reply{}; });
  HttpClient client(&cancelled_, &bytes_);
  const HttpReply reply = client.Post({.url = server.url("/"), .stall = absl::Seconds(5)}, "{}");
  EXPECT_TRUE(reply.refused_address);
  EXPECT_THAT(server.seen(), SizeIs(0));
}

TEST(RetryAfter, HasSecondsOrADate) {
  const absl::Time now = absl::FromUnixSeconds(784'111'777);  // Sun, 06 Nov 1994 08:49:37 GMT
  EXPECT_EQ(ParseRetryAfter("7", now), absl::Seconds(7));
  EXPECT_EQ(ParseRetryAfter("Sun, 06 Nov 1994 08:49:40 GMT", now), absl::Seconds(3));
  EXPECT_EQ(ParseRetryAfter("Sun, 06 Nov 1994 08:49:00 GMT", now), absl::ZeroDuration());
  EXPECT_EQ(ParseRetryAfter("-1", now), std::nullopt);
  EXPECT_EQ(ParseRetryAfter("soon", now), std::nullopt);
  EXPECT_EQ(ParseRetryAfter("", now), std::nullopt);
}

}  // namespace
}  // namespace nsa
