#include "common/chat/render.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/characters/utf8.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"

namespace nsa {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

// What Python's str.strip() leaves out.
bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

std::string_view Trimmed(std::string_view text) {
  for (Utf8Character c = FirstUtf8(text); c.bytes > 0 && IsWhiteSpace(c.code);
       c = FirstUtf8(text)) {
    text.remove_prefix(c.bytes);
  }
  for (Utf8Character c = LastUtf8(text); c.bytes > 0 && IsWhiteSpace(c.code); c = LastUtf8(text)) {
    text.remove_suffix(c.bytes);
  }
  return text;
}

std::string_view WithoutLineFeeds(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

std::string_view Behind(std::string_view text, std::string_view mark) {
  const size_t at = text.rfind(mark);
  return at == std::string_view::npos ? text : text.substr(at + mark.size());
}

// An answer, divided as Qwen3's template does.
struct Divided {
  std::string_view thoughts;
  std::string_view said;
};
Divided Divide(std::string_view answer) {
  const size_t close = answer.find(kClose);
  if (close == std::string_view::npos) return {.said = answer};
  std::string_view said = Behind(answer, kClose);
  while (said.starts_with('\n')) said.remove_prefix(1);
  return {.thoughts = WithoutLineFeeds(Behind(answer.substr(0, close), kOpen)), .said = said};
}

absl::Status Refused(size_t index, std::string_view part, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("messages[%d].%s: %s", index, part, what));
}

absl::Status CheckRole(const ChatFormat& format, std::span<const ChatMessage> messages, size_t i) {
  const std::string& role = messages[i].role;
  if (role == "system") {
    if (i > 0) return Refused(i, "role", "system (only the first message may be); put it first");
    if (format.system_place != SystemPlace::kNone) return absl::OkStatus();
    return Refused(i, "role",
                   "system (the model's chat format has none); put it into the first question");
  }
  if (role != "user" && role != "assistant") {
    return Refused(i, "role",
                   absl::StrCat("'", CleanLine(CutText(role, 40)),
                                "' (system, user or assistant); leave the conversation out"));
  }
  if (!format.alternates) return absl::OkStatus();
  const bool first = i == 0 || messages[i - 1].role == "system";
  const bool question = first || messages[i - 1].role == "assistant";
  if (question == (role == "user")) return absl::OkStatus();
  return Refused(i, "role",
                 absl::StrFormat("%s (%s here: questions and answers alternate in the format %s); "
                                 "join the messages, or leave the conversation out",
                                 role, question ? "user" : "assistant", format.name));
}

absl::Status Check(const ChatFormat& format, std::span<const ChatMessage> messages) {
  if (messages.empty()) {
    return absl::InvalidArgumentError("messages: none (at least one); add a question");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    NSA_RETURN_IF_ERROR(CheckRole(format, messages, i));
    if (!Trimmed(messages[i].content).empty()) continue;
    return Refused(i, "content", "empty (must have a text); leave the message out");
  }
  return absl::OkStatus();
}

class Rendering {
 public:
  Rendering(const ChatFormat& format, std::span<const ChatMessage> messages)
      : format_(format), messages_(messages) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != "user") continue;
      if (!first_user_) first_user_ = i;
      last_user_ = i;
    }
  }

  void Conversation() {
    AddAll(format_.begin);
    const bool has_system = messages_[0].role == "system";
    if (format_.system_place == SystemPlace::kTurn) {
      if (has_system) {
        Turn(format_.system, messages_[0].content);
      } else if (format_.default_system) {
        Turn(format_.system, *format_.default_system);
      }
    }
    for (size_t i = has_system ? 1 : 0; i < messages_.size(); ++i) {
      if (messages_[i].role == "user") {
        Turn(format_.user, Question(i));
      } else {
        Answer(i);
      }
    }
  }

  void PromptOfAnswer() {
    for (const ChatPiece& piece : format_.assistant.before) {
      if (!piece.answer) Add(piece);
    }
    if (format_.thoughts == Thoughts::kOpened) Add({absl::StrFormat("%s\n", kOpen)});
  }

  std::vector<ChatPiece> Take() { return std::move(pieces_); }

 private:
  void Add(const ChatPiece& piece) {
    if (piece.text.empty()) return;
    ChatPiece* const last = pieces_.empty() ? nullptr : &pieces_.back();
    const bool joins = last != nullptr && !piece.control && !last->control;
    if (joins && last->answer == piece.answer) {
      last->text += piece.text;
    } else {
      pieces_.push_back(piece);
    }
  }
  void AddAll(const std::vector<ChatPiece>& pieces) {
    for (const ChatPiece& piece : pieces) Add(piece);
  }

  void Turn(const ChatTurn& turn, std::string_view content) {
    AddAll(turn.before);
    Add({.text = std::string(turn.trim ? Trimmed(content) : content)});
    AddAll(turn.behind);
  }

  // The content of a question, with the text of the system where the format has it.
  std::string Question(size_t i) const {
    const bool here = (format_.system_place == SystemPlace::kFirstUser && i == first_user_) ||
                      (format_.system_place == SystemPlace::kLastUser && i == last_user_);
    if (!here || messages_[0].role != "system") return messages_[i].content;
    std::string text;
    for (const ChatPiece& piece : format_.system.before) text += piece.text;
    text += messages_[0].content;
    for (const ChatPiece& piece : format_.system.behind) text += piece.text;
    return text + messages_[i].content;
  }

  void Answer(size_t i) {
    AddAll(format_.assistant.before);
    std::string_view content = messages_[i].content;
    if (format_.thoughts != Thoughts::kText) content = Thought(i, content);
    if (format_.assistant.trim) content = Trimmed(content);
    Add({.text = std::string(content), .answer = true});
    AddAll(format_.assistant.behind);
  }

  // Adds the thoughts of an answer to the last question. Returns what the answer says.
  std::string_view Thought(size_t i, std::string_view content) {
    const Divided answer = Divide(content);
    const bool to_last = last_user_ && i > *last_user_;
    const bool last = i + 1 == messages_.size();
    if (!to_last || (!last && answer.thoughts.empty())) return answer.said;
    Add({.text = absl::StrFormat("%s\n", kOpen), .answer = format_.thoughts != Thoughts::kOpened});
    Add({.text = absl::StrFormat("%s\n%s\n\n", answer.thoughts, kClose), .answer = true});
    std::string_view said = answer.said;
    while (said.starts_with('\n')) said.remove_prefix(1);
    return said;
  }

  const ChatFormat& format_;
  const std::span<const ChatMessage> messages_;
  std::optional<size_t> first_user_, last_user_;
  std::vector<ChatPiece> pieces_;
};

}  // namespace

absl::StatusOr<std::vector<ChatPiece>> RenderConversation(const ChatFormat& format,
                                                          std::span<const ChatMessage> messages) {
  NSA_RETURN_IF_ERROR(Check(format, messages));
  const bool answered = std::any_of(messages.begin(), messages.end(),
                                    [](const ChatMessage& m) { return m.role == "assistant"; });
  if (!answered) {
    return Refused(messages.size() - 1, "role",
                   absl::StrCat(messages.back().role,
                                " (no message is of the assistant); add an answer, or leave the "
                                "conversation out"));
  }
  Rendering rendering(format, messages);
  rendering.Conversation();
  return rendering.Take();
}

absl::StatusOr<std::vector<ChatPiece>> RenderPrompt(const ChatFormat& format,
                                                    std::span<const ChatMessage> messages) {
  NSA_RETURN_IF_ERROR(Check(format, messages));
  if (messages.back().role != "user") {
    return Refused(messages.size() - 1, "role",
                   absl::StrCat(messages.back().role,
                                " (the last message must be of the user); end with a question"));
  }
  Rendering rendering(format, messages);
  rendering.Conversation();
  rendering.PromptOfAnswer();
  return rendering.Take();
}

}  // namespace nsa
