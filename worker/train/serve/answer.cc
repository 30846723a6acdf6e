#include "worker/train/serve/answer.h"

#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace nsa::train::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kHttpStatus[] = "nsa/http-status";

// Texts of clients come back in messages, and may be cut within a character.
std::string Written(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const char* TypeOf(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

Json CodeOf(const absl::Status& error) {
  if (absl::IsNotFound(error)) return "model_not_found";
  if (absl::IsOutOfRange(error)) return "context_length_exceeded";
  if (absl::IsResourceExhausted(error)) return "server_busy";
  if (absl::IsUnavailable(error)) return "server_shutting_down";
  return nullptr;
}

// "n" of "n: 0 (from 1 to 256); …".
Json ParamOf(const absl::Status& error) {
  if (!absl::IsInvalidArgument(error) && !absl::IsOutOfRange(error)) return nullptr;
  const std::string_view message(error.message().data(), error.message().size());
  const size_t colon = message.find(": ");
  const std::string_view name = message.substr(0, colon);
  if (colon == std::string_view::npos || name == "body" || name.empty()) return nullptr;
  return std::string(name);
}

// A token in the logprobs of a chat. A part of a character has no bytes here among the tops, which
// are known by their names only.
Json ChatToken(const std::string& name, float logprob, const std::string& bytes) {
  Json numbers = Json::array();
  for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  const bool known = !name.starts_with("bytes:") || name != bytes;
  return {{"token", name}, {"logprob", logprob}, {"bytes", known ? numbers : Json(nullptr)}};
}

Json ChatLogprobsOf(const AnswerHead& head, const std::vector<PlacedToken>& tokens) {
  if (!head.logprobs) return nullptr;
  Json content = Json::array();
  for (const auto& [token, offset] : tokens) {
    Json tops = Json::array();
    for (const auto& [name, logprob] : token.top) {
      if (std::ssize(tops) < head.top_logprobs) tops.push_back(ChatToken(name, logprob, name));
    }
    content.push_back(ChatToken(token.name, token.logprob.value_or(0), token.bytes));
    content.back()["top_logprobs"] = std::move(tops);
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json LogprobsOf(const AnswerHead& head, const std::vector<PlacedToken>& tokens) {
  if (head.chat) return ChatLogprobsOf(head, tokens);
  if (!head.logprobs) return nullptr;
  Json names = Json::array(), logprobs = Json::array(), tops = Json::array();
  Json offsets = Json::array();
  for (const auto& [token, offset] : tokens) {
    names.push_back(token.name);
    logprobs.push_back(token.logprob.has_value() ? Json(*token.logprob) : Json(nullptr));
    Json top = token.logprob.has_value() ? Json::object() : Json(nullptr);
    for (const auto& [name, logprob] : token.top) top.emplace(name, logprob);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", head.top_logprobs > 0 ? std::move(tops) : Json(nullptr)},
          {"text_offset", std::move(offsets)}};
}

// What a choice says: its text, the whole message of a chat, or what a chunk adds to one.
enum class Form { kText, kMessage, kDelta };

Json SaidIn(Form form, const std::string& text) {
  if (form == Form::kText) return text;
  if (form == Form::kDelta) {
    Json delta = Json::object();
    if (!text.empty()) delta["content"] = text;
    return delta;
  }
  return {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
}

Json ChoiceOf(const AnswerHead& head, const AnswerPiece& piece, Form form) {
  constexpr const char* kNames[] = {"text", "message", "delta"};
  return {
      {kNames[static_cast<size_t>(form)], SaidIn(form, piece.text)},
      {"index", piece.choice},
      {"logprobs", LogprobsOf(head, piece.tokens)},
      {"finish_reason", piece.finish_reason.empty() ? Json(nullptr) : Json(piece.finish_reason)}};
}

Json AnswerOf(const AnswerHead& head, Json choices, bool part) {
  const char* const chat = part ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head.id},
          {"object", head.chat ? chat : "text_completion"},
          {"created", head.created},
          {"model", head.model},
          {"choices", std::move(choices)}};
}

Json UsageOf(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json ModelOf(const std::string& model, int64_t created) {
  return {{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "nsa"}};
}

Json ErrorOf(const absl::Status& error) {
  return {{"error",
           {{"message", std::string(error.message())},
            {"type", TypeOf(HttpStatusOf(error))},
            {"param", ParamOf(error)},
            {"code", CodeOf(error)}}}};
}

std::string Event(const Json& document) {
  return absl::StrCat("data: ", Written(document), "\n\n");
}

std::string ChoiceEvent(const AnswerHead& head, Json choice, bool with_usage) {
  Json document = AnswerOf(head, Json::array({std::move(choice)}), /*part=*/true);
  if (with_usage) document["usage"] = nullptr;
  return Event(document);
}

}  // namespace

int HttpStatusOf(const absl::Status& error) {
  int status = 0;
  if (const auto said = error.GetPayload(kHttpStatus);
      said.has_value() && absl::SimpleAtoi(std::string(*said), &status)) {
    return status;
  }
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

absl::Status HttpError(int status, std::string_view message) {
  absl::Status error =
      absl::FailedPreconditionError(absl::string_view(message.data(), message.size()));
  error.SetPayload(kHttpStatus, absl::Cord(absl::StrCat(status)));
  return error;
}

std::string ErrorJson(const absl::Status& error) { return Written(ErrorOf(error)); }

std::string ModelsJson(const std::string& model, int64_t created) {
  return Written({{"object", "list"}, {"data", Json::array({ModelOf(model, created)})}});
}

std::string ModelJson(const std::string& model, int64_t created) {
  return Written(ModelOf(model, created));
}

void WholeAnswer::Add(AnswerPiece piece) {
  const auto index = static_cast<size_t>(piece.choice);
  if (choices_.size() <= index) choices_.resize(index + 1);
  AnswerPiece& choice = choices_[index];
  choice.choice = piece.choice;
  choice.text += piece.text;
  std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(choice.tokens));
  if (!piece.finish_reason.empty()) choice.finish_reason = std::move(piece.finish_reason);
}

std::string WholeAnswer::Text(const AnswerHead& head, const Usage& usage) const {
  Json choices = Json::array();
  for (const AnswerPiece& choice : choices_) {
    choices.push_back(ChoiceOf(head, choice, head.chat ? Form::kMessage : Form::kText));
  }
  Json document = AnswerOf(head, std::move(choices), /*part=*/false);
  document["usage"] = UsageOf(usage);
  return Written(document);
}

std::string RoleEvent(const AnswerHead& head, int32_t choice, bool with_usage) {
  Json role = ChoiceOf(head, {.choice = choice, .text = {}, .tokens = {}, .finish_reason = {}},
                       Form::kDelta);
  role["delta"] = {{"role", "assistant"}, {"content", ""}};
  role["logprobs"] = nullptr;
  return ChoiceEvent(head, std::move(role), with_usage);
}

std::string PieceEvent(const AnswerHead& head, const AnswerPiece& piece, bool with_usage) {
  return ChoiceEvent(head, ChoiceOf(head, piece, head.chat ? Form::kDelta : Form::kText),
                     with_usage);
}

std::string UsageEvent(const AnswerHead& head, const Usage& usage) {
  Json document = AnswerOf(head, Json::array(), /*part=*/true);
  document["usage"] = UsageOf(usage);
  return Event(document);
}

std::string ErrorEvent(const absl::Status& error) { return Event(ErrorOf(error)); }

}  // namespace nsa::train::serve
