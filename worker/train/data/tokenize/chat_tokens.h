// Turns a rendered conversation (common/chat/render.h) into tokens.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/chat_format.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {

struct ChatTokens {
  std::vector<Token> tokens;
  std::vector<bool> answer;  // of each token: whether the model is to write it
};

// The tokens of the pieces. A marker is the added token that the tokenizer has for it, or else text
// like that beside it. Text is encoded as one from token to token, but an answer begins a new text,
// as it does when a model goes on behind a prompt: so the tokens of a prompt are those with which
// its conversation begins. Spellings of special tokens within messages are text. The errors of
// TextTokenizer::Encode().
absl::StatusOr<ChatTokens> EncodeChat(const TextTokenizer& tokenizer,
                                      std::span<const ChatPiece> pieces);

}  // namespace nsa::train
