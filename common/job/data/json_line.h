// Reads a line of JSON lines: of data, of texts to score, and in preflight, so that they agree.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/render.h"
#include "common/job/data/record_filter.h"
#include "nlohmann/json_fwd.hpp"

namespace nsa {

// Whether nothing is in the line but white space and the record separators of RFC 7464 (0x1E).
bool IsBlankJsonLine(std::string_view line);

// A line that is not blank, parsed. Besides JSON are read: record separators before the object,
// NaN, Infinity and -Infinity as values, and halves of surrogate pairs (\ud800), which become
// U+FFFD.
//
// With dots in its name a field is one within others ("doc.text"), unless there is a field of the
// whole name. Errors are InvalidArgument as "what: value (limit); what to do", with the beginning
// of the line; of a missing field they name those that exist.
class JsonLine {
 public:
  // `line` must outlive the object. `conversation`: what the line must be, for messages.
  static absl::StatusOr<JsonLine> Parse(std::string_view line, bool conversation = false);
  ~JsonLine();
  JsonLine(JsonLine&&) noexcept;

  // What the line has in a field; nothing if it has no such field, or neither a text nor a number
  // nor a bool in it.
  std::optional<FieldValue> ValueOf(std::string_view field) const;

  // Whether the line passes a filter, which is added to `tally`; true without a filter (null).
  bool Passes(const RecordFilter* filter, FilterTally* tally) const;

  // Takes the text of the field `text_field` from the line. A list of texts is one text
  // (kBetweenElements). Nothing if it is null or NaN, which is how Python writes a value that is
  // missing, or a list without texts.
  absl::StatusOr<std::optional<std::string>> TakeText(std::string_view text_field);

  // Takes the conversation: the messages in the field `messages_field`, a list of objects with the
  // texts `role` and `content`; or without that field the fields `prompt` and `completion`, a
  // question and its answer. Nothing if the field, or one of the two, is null. Whether roles and
  // contents make a conversation says RenderConversation().
  absl::StatusOr<std::optional<std::vector<ChatMessage>>> TakeMessages(
      std::string_view messages_field);

 private:
  JsonLine(std::string_view line, std::unique_ptr<nlohmann::json> json);

  std::string_view line_;
  std::unique_ptr<nlohmann::json> json_;
};

// Parse() and TakeText(), or TakeMessages().
absl::StatusOr<std::optional<std::string>> TextOfJsonLine(std::string_view line,
                                                          std::string_view text_field);
absl::StatusOr<std::optional<std::vector<ChatMessage>>> MessagesOfJsonLine(
    std::string_view line, std::string_view messages_field);

// The fields of a question and its answer.
inline constexpr std::string_view kPromptField = "prompt";
inline constexpr std::string_view kCompletionField = "completion";

// The same conversation as one text, for its hash and for readers: "user: Hi\nassistant: Hello".
std::string TextOfMessages(const std::vector<ChatMessage>& messages);

}  // namespace nsa
