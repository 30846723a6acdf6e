#include "worker/train/data/tokenize/chat_tokens.h"

#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace nsa::train {

absl::Status EncodeChat(const TextTokenizer& tokenizer, std::span<const ChatPiece> pieces,
                        const AppendChat& append, ReadProgress* progress) {
  std::string text;  // of pieces that are answer, or are not
  bool answer = false;
  const auto flush = [&]() -> absl::Status {
    const std::string whole = std::exchange(text, {});
    return tokenizer.EncodeInParts(
        whole, [&](std::span<const Token> tokens) { return append(tokens, answer); }, progress);
  };
  for (const ChatPiece& piece : pieces) {
    const std::optional<Token> control =
        piece.control ? tokenizer.ControlToken(piece.text) : std::nullopt;
    if (control || piece.answer != answer) NSA_RETURN_IF_ERROR(flush());
    answer = piece.answer;
    if (control) {
      NSA_RETURN_IF_ERROR(append({&*control, 1}, answer));
    } else {
      text += piece.text;
    }
  }
  return flush();
}

}  // namespace nsa::train
