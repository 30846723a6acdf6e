// What the server answers, in the shape of OpenAI's API.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/serve/completion_text.h"

namespace nsa::train::serve {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

// What all parts of one answer share.
struct AnswerHead {
  bool chat = false;
  std::string id;       // "cmpl-…", "chatcmpl-…"
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool logprobs = false;     // wanted
  int32_t top_logprobs = 0;  // how many most probable tokens are wanted beside each
};

// The HTTP status of an error: 400, 403, 404, 408, 411, 413, 415, 421, 429, 500 or 503.
int HttpStatusOf(const absl::Status& error);

// An error whose HTTP status is not that of its code, e.g. 413.
absl::Status HttpError(int status, std::string_view message);

// {"error": {"message", "type", "param", "code"}}. `param` is the parameter that the message begins
// with ("n: 0 (…)"), in an error of the request's parameters, otherwise null.
std::string ErrorJson(const absl::Status& error);

// GET /v1/models and GET /v1/models/NAME.
std::string ModelsJson(const std::string& model, int64_t created);
std::string ModelJson(const std::string& model, int64_t created);

// The answer to a request without stream: puts the pieces of all choices together.
class WholeAnswer {
 public:
  // Pieces of one choice come in order.
  void Add(AnswerPiece piece);

  std::string Text(const AnswerHead& head, const Usage& usage) const;

 private:
  std::vector<AnswerPiece> choices_;  // by their index
};

// The parts of a stream of server-sent events. That of the role is the first of a choice of a chat.
std::string RoleEvent(const AnswerHead& head, int32_t choice, bool with_usage);
std::string PieceEvent(const AnswerHead& head, const AnswerPiece& piece, bool with_usage);
std::string UsageEvent(const AnswerHead& head, const Usage& usage);
std::string ErrorEvent(const absl::Status& error);
inline constexpr char kDoneEvent[] = "data: [DONE]\n\n";

}  // namespace nsa::train::serve
