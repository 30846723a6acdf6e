// Reads a line of JSON lines: of data, of texts to score, and in preflight, so that they agree.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/render.h"

namespace nsa {

// Whether nothing is in the line but white space and the record separators of RFC 7464 (0x1E).
bool IsBlankJsonLine(std::string_view line);

// The text of a line that is not blank: its field `text_field`, or with dots in the name a field
// within others ("doc.text"). A list of texts is one text (kBetweenElements). Nothing if it is null
// or NaN, which is how Python writes a value that is missing, or a list without texts.
//
// Besides JSON are read: record separators before the object, NaN, Infinity and -Infinity as
// values, and halves of surrogate pairs (\ud800), which become U+FFFD.
//
// InvalidArgument as "what: value (limit); what to do", with the beginning of the line; of a
// missing field it names those that exist.
absl::StatusOr<std::optional<std::string>> TextOfJsonLine(std::string_view line,
                                                          std::string_view text_field);

// The conversation of a line that is not blank: the messages in its field `messages_field`, a list
// of objects with the texts `role` and `content`; or without that field its fields `prompt` and
// `completion`, a question and its answer. Nothing if the field, or one of the two, is null.
//
// What is read besides JSON, and the errors, are those of TextOfJsonLine(). Whether roles and
// contents make a conversation says RenderConversation().
absl::StatusOr<std::optional<std::vector<ChatMessage>>> MessagesOfJsonLine(
    std::string_view line, std::string_view messages_field);

// The fields of a question and its answer.
inline constexpr std::string_view kPromptField = "prompt";
inline constexpr std::string_view kCompletionField = "completion";

// The same conversation as one text, for its hash and for readers: "user: Hi\nassistant: Hello".
std::string TextOfMessages(const std::vector<ChatMessage>& messages);

}  // namespace nsa
