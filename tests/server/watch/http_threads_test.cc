#include "server/watch/http_threads.h"

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/net/http_get.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::pair<Fd, Fd> Sockets() {
  int pair[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  return {Fd(pair[0]), Fd(pair[1])};
}

// Remembers the paths that were asked for; "/wait" is answered when the gate opens.
class HttpThreadsTest : public ::testing::Test {
 protected:
  HttpReply Answer(const HttpRequest& request) {
    const MutexLock lock(&mutex_);
    asked_.push_back(request.path);
    changed_.SignalAll();
    while (request.path == "/wait" && !open_) changed_.Wait(&mutex_);
    return {.body = request.path};
  }
  // The reader of the reply.
  Fd Ask(const std::string& path, bool taken = true) {
    auto [reader, writer] = Sockets();
    EXPECT_EQ(threads_.Serve(std::move(writer), "GET " + path + " HTTP/1.1\r\n\r\n"), taken);
    return std::move(reader);
  }
  void WaitUntilAsked(size_t requests) {
    const MutexLock lock(&mutex_);
    while (asked_.size() < requests) changed_.Wait(&mutex_);
  }
  void Open() {
    const MutexLock lock(&mutex_);
    open_ = true;
    changed_.SignalAll();
  }
  std::vector<std::string> asked() {
    const MutexLock lock(&mutex_);
    return asked_;
  }

  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> asked_ ABSL_GUARDED_BY(mutex_);
  HttpThreads threads_{1, 2, [this](const HttpRequest& request) { return Answer(request); }};
};

TEST_F(HttpThreadsTest, ARequestWhoseReaderHasLeftHasNoEffect) {
  const Fd first = Ask("/wait");
  WaitUntilAsked(1);
  Ask("/left");
  const Fd second = Ask("/stays");
  const Fd third = Ask("/too-many", false);
  EXPECT_EQ(HttpRead(third), "");
  Open();
  EXPECT_THAT(HttpRead(first), AllOf(HasSubstr("HTTP/1.1 200 OK\r\n"), HasSubstr("\r\n\r\n/wait")));
  EXPECT_THAT(HttpRead(second), HasSubstr("\r\n\r\n/stays"));
  EXPECT_THAT(asked(), ElementsAre("/wait", "/stays"));
}

TEST_F(HttpThreadsTest, WhatIsNoRequestIsRefused) {
  for (const char* bytes :
       {"\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2\r\n\r\n", " / HTTP/1.1\r\n\r\n",
        "GET x HTTP/1.1\r\n\r\n", "GET http://x/ HTTP/1.1\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n",
        "GET /%00 HTTP/1.1\r\n\r\n", "GET /%0d%0a HTTP/1.1\r\n\r\n"}) {
    auto [reader, writer] = Sockets();
    ASSERT_TRUE(threads_.Serve(std::move(writer), bytes));
    EXPECT_THAT(HttpRead(reader), HasSubstr("HTTP/1.1 400 ")) << bytes;
  }
  EXPECT_THAT(asked(), ElementsAre());
}

TEST(ParseRequest, ReadsPathQueryHeadersAndBody) {
  const auto request = ParseRequest(
      "POST /api/v1/jobs/a%2fb%c3%a9+c/stop?x=1&name=a+b%26&name=last&empty&%zz=%4 HTTP/1.1\r\n"
      "Host: localhost\r\nX-One:  first \r\nx-one: second\r\nnothing\r\nContent-Length: 3\r\n\r\n"
      "a:b");
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->method, "POST");
  EXPECT_EQ(request->path, "/api/v1/jobs/a/b\u00e9+c/stop");
  EXPECT_THAT(request->query, UnorderedElementsAre(Pair("x", "1"), Pair("name", "last"),
                                                   Pair("empty", ""), Pair("%zz", "%4")));
  EXPECT_THAT(request->headers,
              UnorderedElementsAre(Pair("host", "localhost"), Pair("x-one", "first"),
                                   Pair("content-length", "3")));
  EXPECT_EQ(request->body, "a:b");
}

}  // namespace
}  // namespace nsa::server
