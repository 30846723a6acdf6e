// A rendered conversation as tokens, for training and for serving.
#pragma once

#include <functional>
#include <span>

#include "absl/status/status.h"
#include "common/chat/chat_format.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {

// Hands on the tokens of adjacent pieces (RenderConversation(), RenderPrompt()) that are answer or
// are not. A marker is its token, where the tokenizer has one; what is between two such markers is
// one text, or two where an answer begins or ends. So the tokens of a prompt are those with which
// the conversation begins in training. The errors of TextTokenizer::EncodeInParts().
using AppendChat = std::function<absl::Status(std::span<const Token> tokens, bool answer)>;
absl::Status EncodeChat(const TextTokenizer& tokenizer, std::span<const ChatPiece> pieces,
                        const AppendChat& append, ReadProgress* progress);

}  // namespace nsa::train
