#include "worker/train/serve/http.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/status_matchers.h"

namespace nsa::train::serve {
namespace {

using testing::EndsWith;

// Uses about `kilobytes` KiB of stack; returns the number of calls.
int Recurse(int kilobytes) {
  volatile char frame[1'024] = {};
  frame[kilobytes % 1'024] = 1;
  return kilobytes == 0 ? 0 : Recurse(kilobytes - 1) + frame[kilobytes % 1'024];
}

TEST(HttpTest, AHandlerHasAsMuchStackAsAnyThread) {
  auto server = HttpServer::Start(
      {}, [](HttpExchange& http) { http.Answer(200, "text/plain", absl::StrCat(Recurse(1'024))); });
  ASSERT_OK(server);
  const std::string address = absl::StrCat("127.0.0.1:", (*server)->port());
  EXPECT_THAT(HttpGet(address, "/"), EndsWith("\r\n\r\n1024"));
}

}  // namespace
}  // namespace nsa::train::serve
