// The server with a small model, spoken to over sockets.
#include "worker/train/serve/server.h"

#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/net/http_get.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"
#include "tests/worker/train/serve/running_server.h"
#include "worker/train/serve/chat_page.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// Each test uses the same server, because a server takes two seconds to end.
class ServerTest : public RunningServer, public testing::Test {
 protected:
  static void SetUpTestSuite() { Start(); }
  static void TearDownTestSuite() { End(); }
};

// A chat of one question, with more parameters.
std::string Talk(const std::string& question, const std::string& more) {
  return absl::StrCat(R"({"messages": [{"role": "user", "content": ")", question, "\"}]", more,
                      "}");
}

TEST_F(ServerTest, SaysThatItIsWellAndWhatItServes) {
  EXPECT_EQ(BodyOf(Get("/healthz")), "ok\n");
  const json models = json::parse(BodyOf(Get("/v1/models")));
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "small");
  EXPECT_EQ(json::parse(BodyOf(Get("/v1/models/small"))), models["data"][0]);
  EXPECT_EQ(ErrorOf(Get("/v1/models/other"), 404)["code"], "model_not_found");
}

TEST_F(ServerTest, TakesPathsThatEndWithASlash) {
  EXPECT_EQ(BodyOf(Get("/healthz/")), "ok\n");
  EXPECT_EQ(BodyOf(Get("/v1/models/")), BodyOf(Get("/v1/models")));
  EXPECT_EQ(BodyOf(Get("/v1/models/small/")), BodyOf(Get("/v1/models/small")));
  EXPECT_EQ(StatusOf(Get("/v1/completions/")), 405);
  EXPECT_EQ(StatusOf(Get("/none")), 404);
}

TEST_F(ServerTest, HasAPageThatMayDoOnlyWhatItsPolicyNames) {
  const std::string answer = Get("/");
  EXPECT_EQ(StatusOf(answer), 200);
  EXPECT_EQ(BodyOf(answer), kChatPage);
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(answer,
              HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'sha256-"));
  EXPECT_EQ(ChatPagePolicy().find("unsafe"), std::string::npos);
  const std::string linked =
      "GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n";
  EXPECT_EQ(StatusOf(Send(linked)), 200) << "a link may lead to it";
  EXPECT_EQ(StatusOf(Send("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")), 421);
  EXPECT_EQ(StatusOf(Send(Request(
                Talk("Hi", R"(, "max_tokens": 1)"),
                absl::StrCat("Origin: http://", address_, "\r\nSec-Fetch-Site: same-origin\r\n"),
                "1.1", kChat))),
            200);
}

// One look for everything that is served: the colours and fonts of the coordinator's page.
TEST_F(ServerTest, ThePageHasTheColoursOfTheCoordinators) {
  std::ifstream file(SourceDir() + "/server/web/page/style.css");
  const std::string css{std::istreambuf_iterator<char>(file), {}};
  const std::string page(kChatPage);
  const std::regex value("--[a-z-]+: [^;]+;");
  size_t values = 0;
  for (std::sregex_iterator at(page.begin(), page.end(), value), end; at != end; ++at, ++values) {
    EXPECT_THAT(css, HasSubstr(at->str()));
  }
  EXPECT_GE(values, 24u);
}

TEST_F(ServerTest, CompletesAPrompt) {
  const std::string answer =
      Post(R"({"model": "small", "prompt": "To be", "max_tokens": 5, "seed": 1})");
  ASSERT_EQ(StatusOf(answer), 200) << answer;
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
  const json body = json::parse(BodyOf(answer));
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "small");
  EXPECT_THAT(body["id"].get<std::string>(), StartsWith("cmpl-"));
  EXPECT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"],
            json::parse(R"({"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10})"));
}

// The value of a series of /metrics; 0 when it is not there.
double SeriesOf(const std::string& text, const std::string& name) {
  const size_t at = text.find(absl::StrCat("\n", name, " "));
  return at == std::string::npos ? 0 : std::stod(text.substr(at + name.size() + 2));
}

TEST_F(ServerTest, CountsWhatItAnswersAndWhatItRefuses) {
  const std::string before = BodyOf(Get("/metrics"));
  EXPECT_EQ(StatusOf(Post(R"({"prompt": "To be", "max_tokens": 4})")), 200);
  EXPECT_EQ(StatusOf(Post(R"({"prompt": "To", "max_tokens": 3, "stream": true})")), 200);
  EXPECT_EQ(StatusOf(Post(R"({"n": 0})")), 400);
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  const std::string after = BodyOf(answer);
  const auto added = [&](const std::string& name) {
    return SeriesOf(after, name) - SeriesOf(before, name);
  };
  EXPECT_EQ(added("nsa_serve_requests_total{code=\"200\"}"), 2);
  EXPECT_EQ(added("nsa_serve_requests_total{code=\"400\"}"), 1);
  EXPECT_EQ(added("nsa_serve_prompt_tokens_total"), 7);
  EXPECT_EQ(added("nsa_serve_completion_tokens_total"), 7);
  EXPECT_EQ(added("nsa_serve_first_piece_seconds_count"), 2);
  EXPECT_EQ(added("nsa_serve_request_seconds_count"), 3);
  EXPECT_EQ(added("nsa_serve_token_seconds_count"), 2);
  EXPECT_EQ(SeriesOf(after, "nsa_serve_slots"), 1);
  EXPECT_EQ(SeriesOf(after, "nsa_serve_waiting_requests"), 0);
}

TEST_F(ServerTest, AStreamHasTheSameTextInPieces) {
  const std::string request = R"("prompt": "To be", "max_tokens": 30, "seed": 2)";
  const json whole = json::parse(BodyOf(Post("{" + request + "}")));
  const std::string answer = Send(
      Request("{" + request + R"(, "stream": true, "stream_options": {"include_usage": true}})", "",
              "1.0"));
  ASSERT_EQ(StatusOf(answer), 200) << answer;
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/event-stream"));
  const std::vector<std::string> events = absl::StrSplit(BodyOf(answer), "\n\n", absl::SkipEmpty());
  ASSERT_GT(events.size(), 5u);
  EXPECT_EQ(events.back(), "data: [DONE]");
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    ASSERT_THAT(events[i], StartsWith("data: "));
    const json event = json::parse(events[i].substr(6));
    EXPECT_EQ(event["usage"], nullptr);
    text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, whole["choices"][0]["text"]);
  EXPECT_EQ(json::parse(events[events.size() - 2].substr(6))["usage"], whole["usage"]);
}

TEST_F(ServerTest, AnswersAChat) {
  const std::string answer = Chat(Talk("To be?", R"(, "max_tokens": 9, "seed": 1, "logprobs": true,
                                                    "top_logprobs": 2, "n": 2)"));
  ASSERT_EQ(StatusOf(answer), 200) << answer;
  const json body = json::parse(BodyOf(answer));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_THAT(body["id"].get<std::string>(), StartsWith("chatcmpl-"));
  ASSERT_EQ(body["choices"].size(), 2u);
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_FALSE(choice["message"]["content"].get<std::string>().empty());
  EXPECT_EQ(choice["finish_reason"], "length");
  ASSERT_EQ(choice["logprobs"]["content"].size(), 9u);
  EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
  // <|im_start|>user\nTo be?<|im_end|>\n<|im_start|>assistant\n, in bytes, and the separator.
  EXPECT_EQ(body["usage"],
            json::parse(R"({"prompt_tokens": 57, "completion_tokens": 18, "total_tokens": 75})"));
}

TEST_F(ServerTest, AStreamOfAChatBeginsWithTheRole) {
  const std::string more = R"(, "max_completion_tokens": 20, "seed": 2, "n": 2)";
  const json whole = json::parse(BodyOf(Chat(Talk("Hi", more))));
  const std::string answer =
      Send(Request(Talk("Hi", more + R"(, "stream": true)"), "", "1.0", kChat));
  ASSERT_EQ(StatusOf(answer), 200) << answer;
  const std::vector<std::string> events = absl::StrSplit(BodyOf(answer), "\n\n", absl::SkipEmpty());
  EXPECT_EQ(events.back(), "data: [DONE]");
  std::vector<json> roles(2), contents(2, ""), reasons(2);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json event = json::parse(events[i].substr(6));
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_FALSE(event.contains("usage"));
    const json& choice = event["choices"][0];
    const auto index = choice["index"].get<size_t>();
    if (roles[index].is_null()) {
      EXPECT_EQ(choice["delta"], json::parse(R"({"role": "assistant", "content": ""})"));
      roles[index] = choice["delta"]["role"];
    } else {
      EXPECT_FALSE(choice["delta"].contains("role"));
    }
    contents[index] = contents[index].get<std::string>() + choice["delta"].value("content", "");
    EXPECT_EQ(reasons[index], nullptr) << "the last has it";
    reasons[index] = choice["finish_reason"];
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(contents[i], whole["choices"][i]["message"]["content"]);
    EXPECT_EQ(reasons[i], whole["choices"][i]["finish_reason"]);
  }
}

TEST_F(ServerTest, RefusesWithTheErrorsOfTheApi) {
  EXPECT_EQ(ErrorOf(Post(R"({"prompt": "a", "n": 0})"), 400)["param"], "n");
  EXPECT_EQ(ErrorOf(Post("x"), 400)["type"], "invalid_request_error");
  EXPECT_EQ(ErrorOf(Post(R"({"prompt": "a", "model": "gpt-4"})"), 404)["code"], "model_not_found");
  EXPECT_EQ(ErrorOf(Post("{\"prompt\": \"" + std::string(kContext, 'a') + "\"}"), 400)["code"],
            "context_length_exceeded");
  EXPECT_EQ(StatusOf(Get("/v1/completions")), 405);
  EXPECT_EQ(StatusOf(Get("/v1/chat/completions")), 405);
  EXPECT_EQ(ErrorOf(Chat(R"({"messages": [{"role": "tool", "content": "a"}]})"), 400)["param"],
            "messages[0].role");
  EXPECT_EQ(ErrorOf(Chat(R"({"messages": [{"role": "assistant", "content": "a"}]})"), 400)["param"],
            "messages[0].role");
  EXPECT_EQ(ErrorOf(Chat(Talk(std::string(500, 'a'), "")), 400)["code"], "context_length_exceeded");
  EXPECT_EQ(StatusOf(Send(Header("DELETE /v1/models HTTP/1.1") + "\r\n")), 405);
  EXPECT_EQ(StatusOf(Send(Header("POST /v1/completions HTTP/1.1") +
                          "Content-Type: application/json\r\n\r\n")),
            411);
  EXPECT_EQ(StatusOf(Send(absl::StrCat(Header("POST /v1/completions HTTP/1.1"),
                                       "Content-Length: 15\r\n\r\n", R"({"prompt": "a"})"))),
            415);
}

TEST_F(ServerTest, RefusesForeignHostsAndPages) {
  EXPECT_EQ(StatusOf(Send("GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n")), 421);
  EXPECT_EQ(StatusOf(Send("GET /healthz HTTP/1.0\r\n\r\n")), 421);
  EXPECT_EQ(StatusOf(Send("GET /healthz HTTP/1.1\r\nHost: [::1]:9\r\n\r\n")), 200)
      << "a tunnel from another port";
  const std::string body = R"({"prompt": "a"})";
  EXPECT_EQ(StatusOf(Send(Request(body, "Origin: https://evil.example\r\n"))), 403);
  EXPECT_EQ(StatusOf(Send(Request(body, "Sec-Fetch-Site: cross-site\r\n"))), 403);
  const std::string preflight =
      Send(Header("OPTIONS /v1/completions HTTP/1.1") + "Origin: https://evil.example\r\n\r\n");
  EXPECT_EQ(StatusOf(preflight), 403);
  EXPECT_EQ(preflight.find("Access-Control"), std::string::npos);
}

TEST_F(ServerTest, RefusesALargeBodyBeforeItArrives) {
  EXPECT_EQ(ErrorOf(Send(Header("POST /v1/completions HTTP/1.1") +
                         "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"),
                    413)["type"],
            "invalid_request_error");
  EXPECT_EQ(StatusOf(Post("{\"prompt\": \"" + std::string(kBodyBytes, 'a') + "\"}")), 413);
  EXPECT_TRUE(Free());
}

TEST_F(ServerTest, TakesABodyInChunks) {
  const std::string answer =
      Send(Header("POST /v1/completions HTTP/1.1") +
           "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
           "8\r\n{\"prompt\r\n7\r\n\": \"a\"}\r\n0\r\n\r\n");
  EXPECT_EQ(StatusOf(answer), 200) << answer;
}

TEST_F(ServerTest, AnswersTooManyRequestsWith429) {
  std::vector<Fd> busy = Occupy(1 + kWaitingRequests);
  // The first is computed and the others wait, once all have arrived. One that arrives before them
  // takes the place of one of them, so it stays.
  EXPECT_TRUE(Within(absl::Seconds(60), [&] {
    busy.push_back(HttpSend(address_, Request(kEndless)));
    const timeval soon{.tv_sec = 1, .tv_usec = 0};
    setsockopt(busy.back().get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
    const std::string answer = HttpRead(busy.back());
    return StatusOf(answer) == 429 && ErrorOf(answer, 429)["code"] == "server_busy";
  }));
  EXPECT_EQ(BodyOf(Get("/healthz")), "ok\n") << "the server itself is not busy";
  busy.clear();
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return Free(); }))
      << "clients that have gone leave the queue, and the model";
}

TEST_F(ServerTest, AClientThatLeavesEndsItsCompletion) {
  for (const char* stream : {"false", "true"}) {
    Fd client = HttpSend(
        address_,
        Request(absl::StrCat(R"({"prompt": "a", "max_tokens": 262143, "stream": )", stream, "}")));
    EXPECT_TRUE(Within(absl::Seconds(10), [] { return Busy(); })) << stream;
    const absl::Duration begun = clock_.Monotonic();
    client.Reset();
    EXPECT_TRUE(Free()) << stream;
    EXPECT_LT(clock_.Monotonic() - begun, absl::Seconds(5)) << "by itself it ends much later";
  }
}

TEST_F(ServerTest, AHundredSilentConnectionsDoNotStopIt) {
  std::vector<Fd> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(HttpSend(address_, ""));
    silent.push_back(HttpSend(address_, Request(R"({"prompt": "a"})").substr(0, 90)));
  }
  EXPECT_TRUE(Free());
}

// A server that writes several choices at the same time.
class SlotsOfAServerTest : public RunningServer, public testing::Test {
 protected:
  static void SetUpTestSuite() { Start(3); }
  static void TearDownTestSuite() { End(); }
};

TEST_F(SlotsOfAServerTest, RequestsAreAnsweredWhileAnotherIsWritten) {
  const Fd lengthy = HttpSend(address_, Request(kEndless));
  const auto used = [] { return SeriesOf(BodyOf(Get("/metrics")), "nsa_serve_used_slots"); };
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return used() == 1; }));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Free());
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return used() == 1; })) << "that one still is";
  std::vector<Fd> more = Occupy(2);
  EXPECT_TRUE(Within(absl::Seconds(20), [&] { return used() == 3; }));
  EXPECT_TRUE(Busy());
  more.clear();
  EXPECT_TRUE(Within(absl::Seconds(20), [] { return Free(); }));
}

TEST_F(SlotsOfAServerTest, ManyAtOnceHaveTheTextsThatEachHasAlone) {
  const auto body = [](int i) {
    return absl::StrCat(R"({"prompt": ")", std::string(static_cast<size_t>(i) * 9, 'b'),
                        R"(", "max_tokens": )", 20 + 30 * i, R"(, "n": 2, "seed": )", i, "}");
  };
  std::vector<json> alone;
  for (int i = 0; i < 8; ++i) alone.push_back(json::parse(BodyOf(Post(body(i)))));
  std::vector<Fd> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(HttpSend(address_, Request(body(i))));
  for (size_t i = 0; i < clients.size(); ++i) {
    const json together = json::parse(BodyOf(HttpRead(clients[i])), nullptr, false);
    EXPECT_EQ(together["choices"], alone[i]["choices"]) << i;
    EXPECT_EQ(together["usage"], alone[i]["usage"]);
  }
}

TEST_F(SlotsOfAServerTest, EveryChoiceOfAStreamedChatHasItsRoleOnce) {
  const std::string more = R"(, "max_completion_tokens": 20, "seed": 2, "n": 3)";
  const json whole = json::parse(BodyOf(Chat(Talk("Hi", more))));
  const std::string answer =
      Send(Request(Talk("Hi", more + R"(, "stream": true)"), "", "1.0", kChat));
  const std::vector<std::string> events = absl::StrSplit(BodyOf(answer), "\n\n", absl::SkipEmpty());
  std::vector<std::string> texts(3);
  std::vector<int> roles(3), order;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json choice = json::parse(events[i].substr(6))["choices"][0];
    const auto index = choice["index"].get<size_t>();
    roles[index] += choice["delta"].contains("role") ? 1 : 0;
    texts[index] += choice["delta"].value("content", "");
    order.push_back(static_cast<int>(index));
  }
  EXPECT_EQ(roles, std::vector<int>(3, 1));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end())) << "they are written together";
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(texts[i], whole["choices"][i]["message"]["content"]);
}

}  // namespace
}  // namespace nsa::train::serve
