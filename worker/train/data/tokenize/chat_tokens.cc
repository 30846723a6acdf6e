#include "worker/train/data/tokenize/chat_tokens.h"

#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace nsa::train {
namespace {

class ChatEncoder {
 public:
  explicit ChatEncoder(const TextTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  absl::Status Add(const ChatPiece& piece) {
    const std::optional<int32_t> marker =
        piece.control ? tokenizer_.TokenSpelled(piece.text) : std::nullopt;
    if (marker || piece.answer != answer_) NSA_RETURN_IF_ERROR(Flush());
    answer_ = piece.answer;
    if (!marker) {
      text_ += piece.text;
      return absl::OkStatus();
    }
    chat_.tokens.push_back(*marker);
    place_ = TextPlace::kBehind;
    Mark();
    return absl::OkStatus();
  }

  absl::StatusOr<ChatTokens> Finish() {
    NSA_RETURN_IF_ERROR(Flush());
    return std::move(chat_);
  }

 private:
  // Encodes the text that is waiting.
  absl::Status Flush() {
    if (text_.empty()) return absl::OkStatus();
    NSA_RETURN_IF_ERROR(tokenizer_.Encode(text_, &chat_.tokens, nullptr, place_));
    text_.clear();
    place_ = TextPlace::kWithin;
    Mark();
    return absl::OkStatus();
  }

  void Mark() { chat_.answer.resize(chat_.tokens.size(), answer_); }

  const TextTokenizer& tokenizer_;
  ChatTokens chat_;
  std::string text_;
  bool answer_ = false;  // of the text that is waiting
  TextPlace place_ = TextPlace::kFirst;
};

}  // namespace

absl::StatusOr<ChatTokens> EncodeChat(const TextTokenizer& tokenizer,
                                      std::span<const ChatPiece> pieces) {
  ChatEncoder encoder(tokenizer);
  for (const ChatPiece& piece : pieces) NSA_RETURN_IF_ERROR(encoder.Add(piece));
  return encoder.Finish();
}

}  // namespace nsa::train
