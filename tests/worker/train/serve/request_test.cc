#include "worker/train/serve/request.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// A body with a prompt and these parameters.
std::string With(const std::string& parameters) {
  return absl::StrCat("{\"prompt\": \"To be\", ", parameters, "}");
}

CompletionRequest Read(const std::string& body) {
  const auto request = ReadRequest(body);
  EXPECT_OK(request) << body;
  return request.value_or(CompletionRequest{});
}

std::string Refusal(const std::string& body) {
  const absl::Status status = ReadRequest(body).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body.substr(0, 200);
  return std::string(status.message());
}

TEST(ReadRequest, HasTheDefaultsOfTheApi) {
  const CompletionRequest request = Read(R"({"prompt": "To be"})");
  EXPECT_EQ(request.model, "");
  EXPECT_THAT(request.prompts, ElementsAre(Prompt("To be")));
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.draw.temperature, 1);
  EXPECT_EQ(request.draw.top_p, 1);
  EXPECT_EQ(request.draw.top_k, 0);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.stream || request.include_usage || request.echo);
  EXPECT_FALSE(request.logprobs.has_value() || request.seed.has_value());
  EXPECT_TRUE(request.stops.empty());
}

TEST(ReadRequest, TakesEveryParameter) {
  const CompletionRequest request = Read(
      R"({"model": "tiny", "prompt": "a", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9,
          "top_k": 40, "n": 3, "best_of": 3, "stream": true,
          "stream_options": {"include_usage": true}, "logprobs": 5, "echo": true,
          "stop": ["\n", "END"], "seed": -4, "user": "ada", "presence_penalty": 0,
          "frequency_penalty": 0.0, "suffix": "", "logit_bias": {}})");
  EXPECT_EQ(request.model, "tiny");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.draw.temperature, 0.5);
  EXPECT_EQ(request.draw.top_p, 0.9);
  EXPECT_EQ(request.draw.top_k, 40);
  EXPECT_EQ(request.n, 3);
  EXPECT_TRUE(request.stream && request.include_usage && request.echo);
  EXPECT_EQ(request.logprobs, 5);
  EXPECT_THAT(request.stops, ElementsAre("\n", "END"));
  EXPECT_EQ(request.seed, -4);
}

TEST(ReadRequest, TakesNullAsLeftOut) {
  const CompletionRequest request =
      Read(With(R"("model": null, "max_tokens": null, "temperature": null, "top_p": null, "n": null,
              "best_of": null, "stream": null, "stream_options": null, "logprobs": null,
              "echo": null, "stop": null, "seed": null, "user": null, "presence_penalty": null,
              "frequency_penalty": null, "suffix": null, "logit_bias": null, "top_k": null)"));
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.logprobs.has_value() || request.seed.has_value());
  EXPECT_THAT(Refusal(R"({"prompt": null})"), StartsWith("prompt: missing"));
}

TEST(ReadRequest, TakesAsManyTokensAsFitForMinusOneAndNull) {
  for (const char* most : {"-1", "-1.0", "null"}) {
    EXPECT_EQ(Read(With(absl::StrCat("\"max_tokens\": ", most))).max_tokens, std::nullopt) << most;
  }
}

TEST(ReadRequest, TakesWholeNumbersThatAreWrittenAsFractions) {
  const CompletionRequest request =
      Read(With(R"("max_tokens": 4.0, "seed": 1.0, "n": 2.0, "best_of": 2.0, "top_k": 4e1,
              "logprobs": 3.0)"));
  EXPECT_EQ(request.max_tokens, 4);
  EXPECT_EQ(request.seed, 1);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.draw.top_k, 40);
  EXPECT_EQ(request.logprobs, 3);
  EXPECT_THAT(Read(R"({"prompt": [84.0, 111]})").prompts,
              ElementsAre(Prompt(std::vector<int32_t>{84, 111})));
}

TEST(ReadRequest, TakesParametersThatAskForNothing) {
  for (const char* neutral : {R"("min_p": 0)",
                              R"("min_p": 0.0)",
                              R"("repetition_penalty": 1.0)",
                              R"("metadata": null)",
                              R"("metadata": {})",
                              R"("logit_bias": {})",
                              R"("suffix": "")",
                              R"("tools": [])",
                              R"("presence_penalty": -0.0)",
                              R"("response_format": {"type": "text"})",
                              R"("stop_token_ids": [])",
                              R"("use_beam_search": false)",
                              R"("guided_json": null)",
                              R"("skip_special_tokens": true)",
                              R"("ignore_eos": true)",
                              R"("service_tier": "auto")",
                              R"("xtc_threshold": 0.1)",
                              R"("safety_identifier": "ada")",
                              R"("prompt_cache_key": "")",
                              R"("logprobs": false)",
                              R"("top_k": -1)",
                              R"("stream": true, "stream_options": {"include_obfuscation": false})",
                              R"("stream": true, "stream_options": {"include_usage": null,
           "continuous_usage_stats": false, "include_obfuscation": null})"}) {
    const CompletionRequest request = Read(With(neutral));
    EXPECT_FALSE(request.include_usage || request.logprobs.has_value()) << neutral;
    EXPECT_EQ(request.draw.top_k, 0) << neutral;
  }
}

// lm-eval's humaneval and gsm8k_cot send five stop strings.
TEST(ReadRequest, TakesAsManyStopsAndLogprobsAsItsLimits) {
  std::string stops = "\"0\"";
  for (size_t i = 1; i < kStops; ++i) absl::StrAppend(&stops, ", \"", i, "\"");
  EXPECT_EQ(Read(With(absl::StrCat("\"stop\": [", stops, "]"))).stops.size(), 32u);
  EXPECT_THAT(Refusal(With(absl::StrCat("\"stop\": [", stops, ", \"x\"]"))),
              StartsWith("stop: a list of 33 (at most 32 strings); send fewer"));
  EXPECT_EQ(Read(With(R"("logprobs": 20)")).logprobs, 20);
}

TEST(ReadRequest, TakesPromptsInAllFourShapes) {
  using Tokens = std::vector<int32_t>;
  EXPECT_THAT(Read(R"({"prompt": ""})").prompts, ElementsAre(Prompt("")));
  EXPECT_THAT(Read(R"({"prompt": ["a", "b"]})").prompts, ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(Read(R"({"prompt": [84, 111]})").prompts, ElementsAre(Prompt(Tokens{84, 111})));
  EXPECT_THAT(Read(R"({"prompt": [[84], [], [2147483647]]})").prompts,
              ElementsAre(Prompt(Tokens{84}), Prompt(Tokens{}), Prompt(Tokens{2147483647})));
  EXPECT_THAT(Read(With(R"("stop": "x")")).stops, ElementsAre("x"));
  EXPECT_THAT(Read(With(R"("stop": [])")).stops, ElementsAre());
}

TEST(ReadRequest, RefusesEachParameterOutsideItsRangeByName) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"("max_tokens": -2)", "max_tokens: -2 (must be a whole number from -1 to 262144)"},
      {R"("max_tokens": 1.5)", "max_tokens: 1.5 (must be a whole number"},
      {R"("max_tokens": "7")", "max_tokens: \"7\" (must be a whole number"},
      {R"("max_tokens": 262145)", "max_tokens: 262145 "},
      {R"("max_tokens": 18446744073709551615)", "max_tokens: 18446744073709551615 "},
      {R"("max_tokens": 0)", "max_tokens: 0 (at least 1, without echo)"},
      {R"("temperature": -0.1)", "temperature: -0.1 (from 0 to 100)"},
      {R"("temperature": 101)", "temperature: 101 "},
      {R"("temperature": "hot")", "temperature: \"hot\" (must be a number)"},
      {R"("top_p": 0)", "top_p: 0 (more than 0, at most 1)"},
      {R"("top_p": 1.1)", "top_p: 1.1 "},
      {R"("top_k": -2)", "top_k: -2 "},
      {R"("n": 0)", "n: 0 (must be a whole number from 1 to 256)"},
      {R"("n": 257)", "n: 257 "},
      {R"("n": 2, "best_of": 3)", "best_of: 3 (must be n = 2)"},
      {R"("best_of": 2)", "best_of: 2 (must be n = 1)"},
      {R"("stream": 1)", "stream: 1 (must be true or false)"},
      {R"("stream_options": {"include_usage": true})", "stream_options: set (only with stream)"},
      {R"("stream": true, "stream_options": 1)", "stream_options: 1 (must be an object"},
      {R"("stream": true, "stream_options": {"x": 1})",
       "stream_options: \"x\" (must be include_usage)"},
      {R"("stream": true, "stream_options": {"include_usage": 1})",
       "stream_options.include_usage: 1 (must be true or false)"},
      {R"("logprobs": 21)", "logprobs: 21 (must be a whole number from 0 to 20)"},
      {R"("logprobs": true)", "logprobs: true "},
      {R"("echo": "yes")", "echo: \"yes\" (must be true or false)"},
      {R"("stop": "")", "stop: \"\" (must be a string of 1 to 1024 bytes)"},
      {R"("stop": 1)", "stop: 1 (must be a string"},
      {R"("stop": ["a", 1])", "stop: 1 (must be a string"},
      {R"("seed": 9223372036854775808)", "seed: 9223372036854775808 (must be a whole number"},
      {R"("seed": 1.5)", "seed: 1.5 "},
      {R"("seed": 1e19)", "seed: 1e+19 (must be a whole number"},
      {R"("model": 1)", "model: 1 (must be a string"},
      {R"("user": {})", "user: an object (must be a string"},
      {R"("presence_penalty": 0.5)", "presence_penalty: 0.5 (not supported); leave it out"},
      {R"("frequency_penalty": -1)", "frequency_penalty: -1 (not supported)"},
      {R"("suffix": "x")", "suffix: \"x\" (not supported)"},
      {R"("logit_bias": {"50256": -100})", "logit_bias: an object (not supported)"},
      {R"("min_p": 0.1)", "min_p: 0.1 (not supported); leave it out"},
      {R"("min_p": false)", "min_p: false (not supported)"},
      {R"("repetition_penalty": 0)", "repetition_penalty: 0 (not supported)"},
      {R"("metadata": {"a": "b"})", "metadata: an object (not supported)"},
      {R"("prompt_logprobs": 1)", "prompt_logprobs: 1 (not supported)"},
      {R"("stream": true, "stream_options": {"continuous_usage_stats": true})",
       "stream_options.continuous_usage_stats: true (not supported)"},
      {R"("stream_options.include_obfuscation": false)",
       "stream_options.include_obfuscation: unknown parameter "},
      {R"("min_pp": null)", "min_pp: unknown parameter (best_of, echo, "}};
  for (const auto& [parameters, message] : wrong) {
    EXPECT_THAT(Refusal(With(parameters)), StartsWith(message)) << parameters;
  }
}

TEST(ReadRequest, RefusesPromptsThatAreNone) {
  for (const char* prompt :
       {"1", "true", "{}", "[true]", "[1, \"a\"]", "[1, -1]", "[1.5]", "[[\"a\"]]", "[\"a\", 1]",
        "[[1], [[2]]]", "[2147483648]", "[{}]", "[null]"}) {
    EXPECT_THAT(Refusal(absl::StrCat("{\"prompt\": ", prompt, "}")), StartsWith("prompt: "))
        << prompt;
  }
  EXPECT_THAT(Refusal(R"({"prompt": []})"), StartsWith("prompt: an empty list"));
  EXPECT_THAT(Refusal("{}"), StartsWith("prompt: missing"));
}

TEST(ReadRequest, LimitsTheChoicesOfARequest) {
  std::string prompts = "\"a\"";
  for (int i = 1; i < kChoices; ++i) prompts += ", \"a\"";
  EXPECT_EQ(Read(absl::StrCat("{\"prompt\": [", prompts, "]}")).prompts.size(), 256u);
  EXPECT_THAT(Refusal(absl::StrCat("{\"prompt\": [", prompts, ", \"a\"]}")),
              StartsWith("prompt: 257 prompts (at most 256)"));
  EXPECT_THAT(Refusal(absl::StrCat("{\"n\": 2, \"prompt\": [", prompts, "]}")),
              StartsWith("n: 2 for each of 256 prompts (256 choices in all)"));
}

TEST(ReadRequest, RefusesWhatIsNoObjectOfJson) {
  for (const char* body : {"", "null", "[]", "\"x\"", "{", "{\"prompt\": \"a\"} x",
                           "{\"prompt\": \"\xff\"}", "{'prompt': 'a'}", "{\"prompt\": 1e999}"}) {
    EXPECT_THAT(Refusal(body), StartsWith("body: not a JSON object in UTF-8")) << body;
  }
}

// Each would take fifty times its bytes, or the stack.
TEST(ReadRequest, RefusesBodiesThatGrowBeforeItReadsThem) {
  EXPECT_THAT(Refusal(std::string(1'000'000, '[')), HasSubstr("body: more than 8 levels"));
  EXPECT_THAT(Refusal("{\"prompt\": " + std::string(9, '[') + std::string(9, ']') + "}"),
              HasSubstr("levels of nesting"));
  std::string empties = "[]";
  for (int i = 0; i < 400'000; ++i) empties += ",[]";
  EXPECT_THAT(Refusal("{\"prompt\": [" + empties + "]}"), HasSubstr("values (at most 300000)"));
  std::string commas(1'000'000, ',');
  EXPECT_EQ(
      std::get<std::string>(Read("{\"prompt\": \"" + commas + "[[[[[[[[[[\\\"[\"}").prompts[0]),
      commas + "[[[[[[[[[[\"[")
      << "in a string they are text";
}

TEST(ReadRequest, ShowsLongValuesByTheirLength) {
  EXPECT_THAT(Refusal(With("\"suffix\": \"" + std::string(1'000, 'x') + "\"")),
              StartsWith("suffix: a string of 1000 bytes (not supported)"));
  EXPECT_LT(Refusal(With("\"" + std::string(100'000, 'x') + "\": 1")).size(), 1'000u);
}

absl::StatusOr<CompletionRequest> TryChat(const std::string& messages,
                                          const std::string& more = "") {
  return ReadRequest(absl::StrCat("{\"messages\": ", messages, more, "}"), Api::kChat);
}

constexpr char kHi[] = R"([{"role": "user", "content": "Hi"}])";

TEST(ReadChat, TakesMessagesWhoseContentsAreTextsOrListsOfThem) {
  const auto request = TryChat(R"([
      {"role": "developer", "content": "Be brief.", "name": "boss"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "refusal": null, "tool_calls": [], "audio": null},
      {"role": "user", "content": ""}])");
  ASSERT_OK(request);
  ASSERT_EQ(request->messages.size(), 4u);
  const std::pair<const char*, const char*> wanted[] = {
      {"system", "Be brief."}, {"user", "ab"}, {"assistant", "c"}, {"user", ""}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(request->messages[i].role, wanted[i].first);
    EXPECT_EQ(request->messages[i].content, wanted[i].second);
  }
  EXPECT_EQ(request->max_tokens, std::nullopt) << "as many as there is room for";
  EXPECT_TRUE(request->chat() && request->prompts.empty());
}

TEST(ReadChat, HasThreeParametersThatCompletionsHaveNot) {
  const auto good = TryChat(kHi, R"(, "max_tokens": 5, "max_completion_tokens": 7,
      "logprobs": true, "top_logprobs": 3, "stop": "x", "echo": false, "best_of": 1,
      "tools": [], "tool_choice": "auto", "add_generation_prompt": true)");
  ASSERT_OK(good);
  EXPECT_EQ(good->max_tokens, 7);
  EXPECT_EQ(good->logprobs, 3);
  EXPECT_THAT(good->stops, ElementsAre("x"));
  EXPECT_EQ(TryChat(kHi, R"(, "logprobs": true)")->logprobs, 0);
  EXPECT_EQ(TryChat(kHi, R"(, "logprobs": false, "top_logprobs": 0)")->logprobs, std::nullopt);
  EXPECT_EQ(TryChat(kHi, R"(, "max_completion_tokens": null)")->max_tokens, std::nullopt);
}

TEST(ReadChat, RefusesByThePlaceInTheMessages) {
  const std::pair<std::string, std::string> wrong[] = {
      {"[]", "messages: a list of 0 (must be a list of at least one message)"},
      {"\"Hi\"", "messages: \"Hi\" (must be a list"},
      {"null", "messages: missing"},
      {"[1]", "messages[0]: 1 (must be an object with role and content)"},
      {R"([{"content": "Hi"}])", "messages[0].role: missing"},
      {R"([{"role": "tool", "content": "Hi"}])",
       "messages[0].role: \"tool\" (must be system, user or assistant)"},
      {R"([{"role": "user", "content": 1}])", "messages[0].content: 1 (must be a string or a list"},
      {R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[0]: an object (must be {\"type\": \"text\""},
      {R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [1]}])",
       "messages[1].tool_calls: a list of 1 (not supported); leave it out"}};
  for (const auto& [messages, error] : wrong) {
    EXPECT_THAT(std::string(TryChat(messages).status().message()), StartsWith(error));
  }
  const std::pair<std::string, std::string> others[] = {
      {R"(, "prompt": "a")", "prompt: unknown parameter ("},
      {R"(, "echo": true)", "echo: true (not supported)"},
      {R"(, "max_tokens": 0)", "max_tokens: 0 (at least 1)"},
      {R"(, "max_completion_tokens": 0)",
       "max_completion_tokens: 0 (must be a whole number from 1"},
      {R"(, "logprobs": 2)", "logprobs: 2 (must be true or false)"},
      {R"(, "top_logprobs": 2)", "top_logprobs: 2 (only with logprobs: true)"},
      {R"(, "logprobs": true, "top_logprobs": 21)", "top_logprobs: 21 (must be a whole number"}};
  for (const auto& [more, error] : others) {
    EXPECT_THAT(std::string(TryChat(kHi, more).status().message()), StartsWith(error));
  }
}

}  // namespace
}  // namespace nsa::train::serve
