// Any bytes as the body of POST /v1/completions and of POST /v1/chat/completions. What is accepted
// keeps its limits, and what is refused has a short message that begins with a parameter or "body".
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"
#include "worker/train/serve/answer.h"
#include "worker/train/serve/limits.h"
#include "worker/train/serve/request.h"

using nsa::fuzz::Require;
using nsa::fuzz::RequireRefusal;

namespace serve = nsa::train::serve;

namespace {

void Read(std::string_view body, serve::Api api) {
  const auto request = serve::ReadRequest(body, api);
  if (!request.ok()) {
    RequireRefusal(request.status());
    Require(request.status().message().size() < 1'000, "a long message");
    const auto error = nlohmann::json::parse(serve::ErrorJson(request.status()), nullptr, false);
    Require(error.is_object(), "an error that is no JSON");
    return;
  }
  const bool chat = api == serve::Api::kChat;
  Require(request->chat() == chat && request->prompts.empty() == chat, "prompts of a chat");
  const auto prompts = static_cast<int64_t>(chat ? 1 : request->prompts.size());
  Require(prompts >= 1 && prompts * request->n <= serve::kChoices, "too many choices");
  const int64_t most = request->max_tokens.value_or(0);
  Require(most >= 0 && most <= serve::kTokens, "max_tokens");
  Require(request->draw.temperature >= 0 && request->draw.top_p > 0 && request->draw.top_p <= 1 &&
              request->draw.top_k >= 0,
          "drawing");
  Require(
      request->logprobs.value_or(0) >= 0 && request->logprobs.value_or(0) <= serve::kMostLogprobs,
      "logprobs");
  Require(request->stops.size() <= serve::kStops, "stop strings");
  for (const std::string& stop : request->stops) Require(!stop.empty(), "an empty stop string");
  for (const serve::Prompt& prompt : request->prompts) {
    const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt);
    if (tokens == nullptr) continue;
    for (const int32_t token : *tokens) Require(token >= 0, "a negative token");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  Read(body, serve::Api::kCompletions);
  Read(body, serve::Api::kChat);
  return 0;
}
