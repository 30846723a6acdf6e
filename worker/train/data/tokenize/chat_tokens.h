// Turns a rendered conversation (common/chat/render.h) into tokens, for training and for serving.
#pragma once

#include <functional>
#include <span>

#include "absl/status/status.h"
#include "common/chat/chat_format.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {

// Hands on the tokens of the pieces in parts, each of which is answer (what the model is to write)
// or is not. The first part is the separator alone, as in front of every document; a format whose
// conversations begin with the same token, such as <s>, has it once. A marker is the added token
// that the tokenizer has for it, or else text like that beside it. Text is encoded as one from
// token to token, but an answer begins a new text, as it does when a model goes on behind a prompt:
// so the tokens of a prompt are those with which its conversation begins in training. Spellings of
// special tokens within messages are text. The errors of TextTokenizer::EncodeInParts().
using AppendChat = std::function<absl::Status(std::span<const Token> tokens, bool answer)>;
absl::Status EncodeChat(const TextTokenizer& tokenizer, std::span<const ChatPiece> pieces,
                        const AppendChat& append, ReadProgress* progress);

}  // namespace nsa::train
