#include "worker/train/data/tokenize/chat_tokens.h"

#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace nsa::train {

absl::Status EncodeChat(const TextTokenizer& tokenizer, std::span<const ChatPiece> pieces,
                        const AppendChat& append, ReadProgress* progress) {
  std::string text;  // that is waiting
  bool answer = false;
  TextPlace place = TextPlace::kFirst;
  const Token separator = tokenizer.separator();
  NSA_RETURN_IF_ERROR(append({&separator, 1}, false));
  const auto flush = [&]() -> absl::Status {
    if (text.empty()) return absl::OkStatus();
    const std::string whole = std::exchange(text, {});
    return tokenizer.EncodeInParts(
        whole, [&](std::span<const Token> tokens) { return append(tokens, answer); }, progress,
        std::exchange(place, TextPlace::kWithin));
  };
  for (const ChatPiece& piece : pieces) {
    const std::optional<Token> marker =
        piece.control ? tokenizer.TokenSpelled(piece.text) : std::nullopt;
    if (marker || piece.answer != answer) NSA_RETURN_IF_ERROR(flush());
    answer = piece.answer;
    if (marker) {
      const bool written = &piece == pieces.data() && *marker == separator;
      if (!written) NSA_RETURN_IF_ERROR(append({&*marker, 1}, answer));
      place = TextPlace::kBehind;
    } else {
      text += piece.text;
    }
  }
  return flush();
}

}  // namespace nsa::train
