// How a server ends, and what ends a stream. Each test takes seconds: a server takes two to end.
#include <sys/socket.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/within.h"
#include "tests/worker/train/serve/running_server.h"

namespace nsa::train::serve {
namespace {

using testing::HasSubstr;

// Each test has a server of its own.
class EndingServerTest : public RunningServer, public testing::Test {
 protected:
  void SetUp() override { Start(); }
  void TearDown() override { End(); }
};

TEST_F(EndingServerTest, AStreamThatNobodyReadsEnds) {
  Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int small = 4'096;
  setsockopt(client.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  sockaddr_in to{.sin_family = AF_INET};
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  const std::string request =
      Request(R"({"prompt": "a", "max_tokens": 40000, "stream": true, "logprobs": 5})");
  ASSERT_EQ(send(client.get(), request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  EXPECT_TRUE(Free()) << "waits for the model, which the stream has until it ends";
}

TEST_F(EndingServerTest, DrainsWithinASecond) {
  const std::vector<Fd> busy = Occupy(3);
  const Fd stream =
      HttpSend(address_, Request(R"({"prompt": "a", "max_tokens": 262143, "stream": true})"));
  ASSERT_TRUE(Within(absl::Seconds(20), [&] { return StatusOf(Get("/healthz")) == 200; }));
  const absl::Duration begun = clock_.Monotonic();
  server_->Drain(absl::Seconds(30));
  EXPECT_LT(clock_.Monotonic() - begun, absl::Seconds(1));
  int refused = 0;
  for (const Fd& one : busy) {
    const std::string answer = HttpRead(one);
    if (answer.empty()) continue;  // it had not been read yet
    EXPECT_EQ(ErrorOf(answer, 503)["code"], "server_shutting_down");
    ++refused;
  }
  EXPECT_GE(refused, 1);
  EXPECT_EQ(StatusOf(Get("/healthz")), 503);
  EXPECT_EQ(StatusOf(Post(R"({"prompt": "a"})")), 503);
}

TEST_F(EndingServerTest, AStreamThatIsCutOffSaysSo) {
  const Fd stream =
      HttpSend(address_, Request(R"({"prompt": "a", "max_tokens": 262143, "stream": true})"));
  char first[64];
  ASSERT_GT(recv(stream.get(), first, sizeof(first), 0), 0) << "it has begun";
  server_->Drain(absl::Seconds(30));
  const std::string rest = HttpRead(stream);
  EXPECT_THAT(rest, HasSubstr("data: {\"error\":{\"message\":\"the server is shutting down"));
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
}

TEST(CompletionServer, RefusesAddressesThatOthersCanReachAndPortsThatAreTaken) {
  const TempDir dir;
  const RealClock clock;
  const auto trained = SmallModel(dir);
  EXPECT_THAT(
      CompletionServer::Start(trained.get(), &clock, {.listen = "0.0.0.0:0"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("asks nobody for a password")));
  const auto one =
      CompletionServer::Start(trained.get(), &clock, {.listen = "127.0.0.1:0", .threads = 1});
  ASSERT_OK(one);
  const std::string taken = (*one)->url().substr(sizeof("http://") - 1);
  EXPECT_THAT(CompletionServer::Start(trained.get(), &clock, {.listen = taken, .threads = 1}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("port in use")));
}

}  // namespace
}  // namespace nsa::train::serve
