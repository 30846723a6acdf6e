#include "client/commands/model/chat_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clean_text.h"
#include "common/base/json_shape.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

using nlohmann::json;

constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kLineBytes = 1 << 20;
constexpr size_t kShownBytes = 300;
// Others may be answered first, and a long conversation takes its time to be read.
constexpr absl::Duration kStall = absl::Hours(1);

// Null for what is nested so deep that a copy would take all of the stack.
json Parsed(std::string_view text) {
  return IsShallow(text) ? json::parse(text, nullptr, false) : json();
}

// The member of an object, or null.
json Member(const json& object, const char* name) {
  return object.is_object() ? object.value(name, json()) : json();
}

std::string StringOf(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

// What an error of the API says; a text that is none as it is.
std::string ErrorIn(const std::string& body) {
  const std::string said = StringOf(Member(Member(Parsed(body), "error"), "message"));
  return CleanLine(CutText(said.empty() ? body : said, kShownBytes));
}

// Reads a stream of server-sent events, each of which is a line here.
class Events {
 public:
  Events(ChatAnswer* answer, const ChatClient::OnText& on_text)
      : answer_(*answer), on_text_(on_text) {}

  void Add(std::string_view part) {
    waiting_ += part;
    size_t begin = 0;
    for (size_t end = waiting_.find('\n'); end != std::string::npos;
         end = waiting_.find('\n', begin)) {
      Line(std::string_view(waiting_).substr(begin, end - begin));
      begin = end + 1;
    }
    waiting_.erase(0, begin);
    if (waiting_.size() > kLineBytes)
      error_ = absl::StrCat("a line of ", waiting_.size(), " bytes");
  }

  // What is wrong with the answer; empty as long as nothing is.
  const std::string& error() const { return error_; }

 private:
  void Line(std::string_view line) {
    constexpr std::string_view kData = "data:";
    if (!line.starts_with(kData)) return;
    const json event = Parsed(line.substr(kData.size()));
    if (!Member(event, "error").is_null()) error_ = ErrorIn(event.dump());
    const json choices = Member(event, "choices");
    if (!choices.is_array() || choices.empty()) return;
    if (const std::string text = StringOf(Member(Member(choices[0], "delta"), "content"));
        !text.empty()) {
      answer_.text += text;
      on_text_(text);
    }
    const std::string reason = StringOf(Member(choices[0], "finish_reason"));
    if (!reason.empty()) answer_.finish_reason = reason;
  }

  ChatAnswer& answer_;
  const ChatClient::OnText& on_text_;
  std::string waiting_, error_;
};

}  // namespace

ChatClient::ChatClient(std::string url, Interrupt* interrupt)
    : url_(std::move(url)), interrupt_(interrupt) {
  for (const std::string_view end : {"/", "/v1"}) {
    if (url_.ends_with(end)) url_.resize(url_.size() - end.size());
  }
}

HttpRequest ChatClient::RequestOf(const std::string& path) const {
  return {.url = url_ + path,
          .any_address = true,
          .most_bytes = kMostBytes,
          .stall = kStall,
          .headers = {"Content-Type: application/json"}};
}

absl::Status ChatClient::CheckReply(const HttpReply& reply) const {
  if (reply.status == 0) {
    return absl::UnavailableError(
        absl::StrCat(url_, ": ", reply.fault, "; does `nsactl serve` run there?"));
  }
  if (reply.status != 200) {
    return absl::FailedPreconditionError(
        absl::StrCat(ErrorIn(reply.body), " (HTTP ", reply.status, ")"));
  }
  if (reply.fault.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(url_, ": the answer broke off: ", reply.fault));
}

absl::StatusOr<std::string> ChatClient::Model() {
  const Interrupt::Scope scope(interrupt_, [this] { cancelled_ = true; });
  const HttpReply reply = http_.Get(RequestOf("/v1/models"));
  if (interrupt_->raised()) return absl::CancelledError("interrupted");
  NSA_RETURN_IF_ERROR(CheckReply(reply));
  const json models = Member(Parsed(reply.body), "data");
  const std::string model =
      models.is_array() && !models.empty() ? StringOf(Member(models[0], "id")) : std::string();
  if (!model.empty()) return model;
  return absl::FailedPreconditionError(
      absl::StrCat(url_, "/v1/models: names no model (OpenAI's API); check the address"));
}

absl::StatusOr<ChatAnswer> ChatClient::Ask(json request, const OnText& on_text) {
  request["stream"] = true;
  ChatAnswer answer;
  Events events(&answer, on_text);
  HttpRequest http = RequestOf("/v1/chat/completions");
  http.on_body = [&](std::string_view part) {
    events.Add(part);
    return events.error().empty() && !cancelled_;
  };
  cancelled_ = false;
  const Interrupt::Scope scope(interrupt_, [this] { cancelled_ = true; });
  // Standard input may have bytes that are not UTF-8.
  const HttpReply reply =
      http_.Post(http, request.dump(-1, ' ', false, json::error_handler_t::replace));
  if (cancelled_) return ChatAnswer{.text = std::move(answer.text), .finish_reason = {}};
  if (!events.error().empty()) return absl::FailedPreconditionError(events.error());
  NSA_RETURN_IF_ERROR(CheckReply(reply));
  if (!answer.finish_reason.empty()) return answer;
  return absl::UnavailableError(absl::StrCat(url_, ": the answer has no end"));
}

}  // namespace nsa::client
