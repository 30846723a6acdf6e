// Reads the bodies of POST /v1/completions and POST /v1/chat/completions: JSON, as OpenAI's API has
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/render.h"
#include "worker/train/score/draw.h"

namespace nsa::train::serve {

enum class Api { kCompletions, kChat };

// A text, or tokens.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  std::string model;                       // empty: whichever is served
  std::vector<Prompt> prompts;             // of completions, at least one
  std::vector<ChatMessage> messages;       // of a chat, at least one
  std::optional<int64_t> max_tokens = 16;  // nothing: as many as the context has room for
  DrawOptions draw = {.temperature = 1};
  int32_t n = 1;  // choices for each prompt
  bool stream = false;
  bool include_usage = false;  // at the end of a stream
  bool echo = false;
  std::optional<int32_t> logprobs;  // most probable tokens to name beside each token
  std::vector<std::string> stops;   // none is empty
  std::optional<int64_t> seed;

  bool chat() const { return !messages.empty(); }
};

// Reads and checks a body. In a chat max_tokens is nothing by default, a message's content may be a
// list of texts, the role developer is that of the system, and `logprobs` is the number
// top_logprobs where logprobs is true. A value null is as if the parameter were not there, except
// that max_tokens null is −1. A whole number may have a fraction of zeros (4.0). InvalidArgument
// with a message that begins with the name of the parameter, e.g. "n: 0 (must be …); leave it out",
// also for a parameter that is unknown, or that is not supported and asks for something; "body: …"
// when it is not JSON. Not checked is what depends on the model: the ids of tokens, the lengths
// of prompts, and which messages its chat format may have.
absl::StatusOr<CompletionRequest> ReadRequest(std::string_view body, Api api = Api::kCompletions);

}  // namespace nsa::train::serve
