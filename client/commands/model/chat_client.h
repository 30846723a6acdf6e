// A conversation with a server of OpenAI's chat API, over HTTP.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/connect/interrupt.h"
#include "common/http/http.h"
#include "nlohmann/json_fwd.hpp"

namespace nsa::client {

struct ChatAnswer {
  std::string text;           // what came, also when it was interrupted
  std::string finish_reason;  // empty: it was interrupted
};

// One thread at a time.
class ChatClient {
 public:
  // `url` as "http://127.0.0.1:8000", or with "/v1" behind it. `interrupt` outlives the client.
  ChatClient(std::string url, Interrupt* interrupt);

  // The name of the first model that the server has. Unavailable when nobody answers,
  // FailedPrecondition with what the server says when it refuses.
  absl::StatusOr<std::string> Model();

  // Sends a request, to which `stream` is added, and hands the answer's text on as it comes. The
  // same errors; an interruption is none, and ends the request within a second.
  using OnText = std::function<void(std::string_view text)>;
  absl::StatusOr<ChatAnswer> Ask(nlohmann::json request, const OnText& on_text);

 private:
  HttpRequest RequestOf(const std::string& path) const;
  absl::Status CheckReply(const HttpReply& reply) const;

  std::string url_;
  Interrupt* const interrupt_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<int64_t> bytes_ = 0;
  HttpClient http_{&cancelled_, &bytes_};
};

}  // namespace nsa::client
