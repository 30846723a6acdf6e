// Renders conversations in a format, as training and serving read them.
//
// A conversation: messages of the roles system, user and assistant. At most the first is of the
// system. Every message has content that is more than white space. Where the format says so,
// questions and answers alternate.
//
// Errors are InvalidArgument and begin with the message, counted from 0: "messages[2].role: …".
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/chat_format.h"

namespace nsa {

struct ChatMessage {
  std::string role;     // system, user or assistant
  std::string content;  // UTF-8
};

// A whole conversation for training: it has at least one answer. The concatenation of the texts is
// what the chat_template of the format gives, but for what chat_template.h lists.
//
//   NamedChatFormat("chatml"), {user: Hi} {assistant: Hello}:
//     <|im_start|> "user\nHi" <|im_end|> "\n" <|im_start|> "assistant\n"   no answer
//     "Hello" <|im_end|>                                                   answer
//     "\n"                                                                 no answer
//
// Adjacent pieces differ: no two texts of the same `answer` follow each other.
absl::StatusOr<std::vector<ChatPiece>> RenderConversation(const ChatFormat& format,
                                                          std::span<const ChatMessage> messages);

// A prompt: the conversation, whose last message must be of the user, and what begins an answer
// (add_generation_prompt). Earlier answers are marked as such, so that the tokens of the prompt are
// those with which the conversation begins in training.
absl::StatusOr<std::vector<ChatPiece>> RenderPrompt(const ChatFormat& format,
                                                    std::span<const ChatMessage> messages);

}  // namespace nsa
