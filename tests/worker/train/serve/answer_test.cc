#include "worker/train/serve/answer.h"

#include <string>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "worker/train/serve/access.h"

namespace nsa::train::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kStart[] = "data: ";

json Parsed(std::string event) {
  if (event.starts_with(kStart)) event = event.substr(sizeof(kStart) - 1);
  return json::parse(event);
}

AnswerHead Head(bool logprobs = false, bool top = false) {
  return {.id = "cmpl-1",
          .created = 7,
          .model = "tiny",
          .logprobs = logprobs,
          .top_logprobs = top ? 1 : 0};
}

AnswerPiece Piece(int32_t choice, const std::string& text, const std::string& reason = "") {
  return {.choice = choice, .text = text, .tokens = {}, .finish_reason = reason};
}

TEST(WholeAnswer, PutsThePiecesOfEachChoiceTogether) {
  WholeAnswer answer;
  answer.Add(Piece(0, "one"));
  answer.Add(Piece(0, " more", "length"));
  answer.Add(Piece(1, "two", "stop"));
  EXPECT_EQ(Parsed(answer.Text(Head(), {.prompt_tokens = 3, .completion_tokens = 4})),
            json::parse(R"({
      "id": "cmpl-1", "object": "text_completion", "created": 7, "model": "tiny",
      "choices": [
        {"text": "one more", "index": 0, "logprobs": null, "finish_reason": "length"},
        {"text": "two", "index": 1, "logprobs": null, "finish_reason": "stop"}],
      "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}})"));
}

TEST(WholeAnswer, ListsTheLogprobsOfTheTokens) {
  AnswerPiece piece = Piece(0, "ab", "length");
  piece.tokens = {{{.bytes = "a", .name = "a", .logprob = {}}, 0},
                  {{.bytes = "b",
                    .name = "b",
                    .logprob = -0.5f,
                    .top = {{"c", -0.25f}, {"b", -0.5f}, {"c", -9}}},
                   1}};  // two tokens may have one name
  WholeAnswer answer;
  answer.Add(piece);
  EXPECT_EQ(Parsed(answer.Text(Head(true, true), {}))["choices"][0]["logprobs"], json::parse(R"({
      "tokens": ["a", "b"], "token_logprobs": [null, -0.5],
      "top_logprobs": [null, {"c": -0.25, "b": -0.5}], "text_offset": [0, 1]})"));
  EXPECT_EQ(Parsed(answer.Text(Head(true, false), {}))["choices"][0]["logprobs"]["top_logprobs"],
            nullptr)
      << "with logprobs 0";
}

AnswerHead ChatHead(int32_t top_logprobs = -1) {
  return {.chat = true,
          .id = "chatcmpl-1",
          .created = 7,
          .model = "tiny",
          .logprobs = top_logprobs >= 0,
          .top_logprobs = top_logprobs};
}

TEST(WholeAnswer, OfAChatHasMessages) {
  WholeAnswer answer;
  answer.Add(Piece(0, "Yo"));
  answer.Add(Piece(0, "!", "stop"));
  EXPECT_EQ(Parsed(answer.Text(ChatHead(), {.prompt_tokens = 3, .completion_tokens = 4})),
            json::parse(R"({
      "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "tiny",
      "choices": [{"message": {"role": "assistant", "content": "Yo!", "refusal": null},
                   "index": 0, "logprobs": null, "finish_reason": "stop"}],
      "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}})"));
}

TEST(WholeAnswer, OfAChatHasLogprobsWithBytes) {
  AnswerPiece piece = Piece(0, "é", "length");
  piece.tokens = {{{.bytes = "\xc3",
                    .name = "bytes:\\xc3",
                    .logprob = -0.5f,
                    .top = {{"c", -0.25f}, {"bytes:\\xc3", -0.5f}, {"d", -1.0f}}},
                   0}};
  WholeAnswer answer;
  answer.Add(piece);
  EXPECT_EQ(Parsed(answer.Text(ChatHead(2), {}))["choices"][0]["logprobs"], json::parse(R"({
      "content": [{"token": "bytes:\\xc3", "logprob": -0.5, "bytes": [195], "top_logprobs": [
          {"token": "c", "logprob": -0.25, "bytes": [99]},
          {"token": "bytes:\\xc3", "logprob": -0.5, "bytes": null}]}],
      "refusal": null})"));
}

TEST(Events, OfAChatAddToAMessage) {
  EXPECT_EQ(Parsed(RoleEvent(ChatHead(), 1, false)), json::parse(R"({
      "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "tiny",
      "choices": [{"delta": {"role": "assistant", "content": ""}, "index": 1, "logprobs": null,
                   "finish_reason": null}]})"));
  EXPECT_EQ(Parsed(PieceEvent(ChatHead(), Piece(1, "Yo"), false))["choices"][0],
            json::parse(R"({"delta": {"content": "Yo"}, "index": 1, "logprobs": null,
                            "finish_reason": null})"));
  const json last = Parsed(PieceEvent(ChatHead(), Piece(1, "", "stop"), true));
  EXPECT_EQ(last["choices"][0]["delta"], json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(last.contains("usage"));
}

TEST(Events, AreOneLineOfJsonEach) {
  const std::string event = PieceEvent(Head(), Piece(2, "line\nline \"\xc3\xa9\""), false);
  EXPECT_THAT(event, StartsWith(kStart));
  EXPECT_EQ(event.find('\n'), event.size() - 2) << "the text's line feed is escaped";
  EXPECT_EQ(Parsed(event)["choices"][0]["text"], "line\nline \"é\"");
  EXPECT_EQ(Parsed(event)["choices"][0]["index"], 2);
  EXPECT_EQ(Parsed(event)["choices"][0]["finish_reason"], nullptr);
  EXPECT_FALSE(Parsed(event).contains("usage"));
}

TEST(Events, HaveTheUsageLastWhereItIsWanted) {
  EXPECT_EQ(Parsed(PieceEvent(Head(), Piece(0, "x"), true))["usage"], nullptr);
  EXPECT_TRUE(Parsed(PieceEvent(Head(), Piece(0, "x"), true)).contains("usage"));
  const json usage = Parsed(UsageEvent(Head(), {.prompt_tokens = 2, .completion_tokens = 5}));
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["total_tokens"], 7);
}

TEST(ErrorJson, NamesTheParameterThatTheMessageBeginsWith) {
  EXPECT_EQ(
      json::parse(ErrorJson(absl::InvalidArgumentError("n: 0 (from 1 to 256); leave it out"))),
      json::parse(R"({"error": {"message": "n: 0 (from 1 to 256); leave it out",
                "type": "invalid_request_error", "param": "n", "code": null}})"));
  EXPECT_EQ(json::parse(ErrorJson(absl::InvalidArgumentError("body: no JSON")))["error"]["param"],
            nullptr);
}

TEST(ErrorJson, HasTheStatusAndTheCodeOfItsKind) {
  const auto code = [](const absl::Status& error) {
    return json::parse(ErrorJson(error))["error"]["code"];
  };
  EXPECT_EQ(HttpStatusOf(absl::InvalidArgumentError("x")), 400);
  EXPECT_EQ(HttpStatusOf(absl::OutOfRangeError("x")), 400);
  EXPECT_EQ(code(absl::OutOfRangeError("prompt: 9 tokens")), "context_length_exceeded");
  EXPECT_EQ(HttpStatusOf(absl::NotFoundError("x")), 404);
  EXPECT_EQ(code(absl::NotFoundError("x")), "model_not_found");
  EXPECT_EQ(HttpStatusOf(absl::ResourceExhaustedError("x")), 429);
  EXPECT_EQ(json::parse(ErrorJson(absl::ResourceExhaustedError("x")))["error"]["type"],
            "rate_limit_error");
  EXPECT_EQ(HttpStatusOf(absl::UnavailableError("x")), 503);
  EXPECT_EQ(HttpStatusOf(absl::InternalError("x")), 500);
  EXPECT_EQ(json::parse(ErrorJson(absl::InternalError("x")))["error"]["type"], "server_error");
  EXPECT_EQ(HttpStatusOf(HttpError(413, "body: too large")), 413);
}

TEST(ErrorJson, IsJsonWhateverBytesTheMessageHas) {
  EXPECT_THAT(
      json::parse(ErrorJson(absl::InvalidArgumentError("\xff\xc3: x")))["error"]["message"].dump(),
      HasSubstr(": x"));
}

TEST(ReadListen, TakesLoopbackOnly) {
  EXPECT_EQ(ReadListen("127.0.0.1:8000")->host, "127.0.0.1");
  EXPECT_EQ(ReadListen("127.0.0.1:8000")->port, 8000);
  EXPECT_EQ(ReadListen("LocalHost:0")->host, "127.0.0.1");
  EXPECT_EQ(ReadListen("localhost:65535")->port, 65535);
  for (const char* address : {"0.0.0.0:8000", "[::]:8000", "192.168.1.7:80", "127.0.0.1.example:80",
                              "lab:80", "127.0.0.2:80"}) {
    EXPECT_THAT(std::string(ReadListen(address).status().message()),
                HasSubstr("asks nobody for a password"))
        << address;
  }
  EXPECT_EQ(ReadListen("[::1]:8000").status().message(),
            "listen: '[::1]:8000' (127.0.0.1 or localhost, by IPv4 only); take 127.0.0.1:8000");
  for (const char* address :
       {"", "8000", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1",
        "127.0.0.1:8000s", "127.0.0.1:999999999999", ":80", "::1:80", "127.0.0.1:80,0.0.0.0:80"}) {
    EXPECT_THAT(std::string(ReadListen(address).status().message()), HasSubstr("HOST:PORT"))
        << address;
  }
}

TEST(CheckOrigins, RefusesNamesThatAreNotThisMachine) {
  for (const char* host :
       {"127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000", "127.0.0.1:8001",
        "[::1]:9000", "localhost:1", "127.0.0.1", "localhost", "[::1]"}) {
    EXPECT_TRUE(CheckOrigins({.host = host}).ok()) << host;
  }
  for (const char* host :
       {"evil.example:8000", "evil.example", "", ":8000", "localhost:", "localhost:99999", "::1",
        "127.0.0.1:8000.evil.example", "localhost.evil.example:8000", "127.0.0.1:08000x",
        "[::2]:8000", "10.0.0.1:8000"}) {
    EXPECT_EQ(HttpStatusOf(CheckOrigins({.host = host})), 421) << host;
  }
  EXPECT_EQ(HttpStatusOf(CheckOrigins({})), 421) << "no Host at all";
}

TEST(CheckOrigins, RefusesPagesOfOtherSites) {
  for (const char* origin : {"https://evil.example", "null", "http://127.0.0.1:8000", "",
                             "http://localhost:3000", "https://localhost:8000"}) {
    EXPECT_EQ(HttpStatusOf(CheckOrigins({.host = "localhost:8000", .origin = origin})), 403)
        << origin;
  }
  for (const char* site : {"cross-site", "same-site"}) {
    EXPECT_EQ(HttpStatusOf(CheckOrigins({.host = "localhost:8000", .sec_fetch_site = site})), 403)
        << site;
    EXPECT_EQ(
        HttpStatusOf(CheckOrigins(
            {.host = "localhost:8000", .origin = "http://localhost:8000", .sec_fetch_site = site})),
        403)
        << site;
  }
  EXPECT_TRUE(CheckOrigins({.host = "localhost:8000",
                            .origin = "http://localhost:8000",
                            .sec_fetch_site = "same-origin"})
                  .ok());
  EXPECT_TRUE(CheckOrigins({.host = "[::1]:8001", .sec_fetch_site = "same-origin"}).ok());
  EXPECT_TRUE(CheckOrigins({.host = "localhost:8000", .sec_fetch_site = "none"}).ok());
}

}  // namespace
}  // namespace nsa::train::serve
