// Turns documents into the tokens of a corpus: the separator, then the document's own tokens. Those
// of a conversation (data.loss_on: assistant) have marks (tokens/token.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/chat/chat_format.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/remote/progress.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {

class DocumentEncoder {
 public:
  // Makes the tokenizer if text is read, and chooses the separator: that of the tokenizer; of token
  // files data.separator, or else that of the tokenizer that the job names, or else `prepared`, of
  // prepared data. InvalidArgument if data.separator is wrong or out of place, if the separator is
  // not below `vocab`, or if document_mask has none; the errors of MakeTokenizer() and, for
  // conversations, of ChatFormatOf().
  static absl::StatusOr<DocumentEncoder> Make(const v1::DataSpec& data, int32_t vocab,
                                              std::optional<int32_t> prepared = std::nullopt);

  // Nothing if only files that know their documents may be read.
  std::optional<int32_t> separator() const { return separator_; }
  int32_t separator_or_none() const { return separator_.value_or(kNoSeparator); }

  // ChatFormatId() of the format in which conversations are written; empty if none are read.
  const std::string& chat_format() const { return chat_format_id_; }

  struct Encoded {
    int64_t tokens = 0;  // with the separator in front, if there is one
    int32_t largest_token = 0;
    int64_t inner_separators = 0;  // 0 of a conversation, whose beginning is marked
    int64_t answer_tokens = 0;     // of a conversation
  };
  // Hands the tokens of a document on in parts. InvalidArgument, naming the place, of a token file
  // that of the first such token, for a token that is not below the vocabulary, for a text that
  // the tokenizer cannot split, and for a conversation that RenderConversation() refuses;
  // Cancelled; the errors of `append`.
  absl::StatusOr<Encoded> Encode(const Document& document, const TextTokenizer::Append& append,
                                 ReadProgress* progress) const;

  // Replaces `tokens` by those of a document.
  absl::StatusOr<Encoded> Encode(const Document& document, std::vector<Token>* tokens,
                                 ReadProgress* progress) const;

 private:
  DocumentEncoder(int32_t vocab, std::optional<int32_t> separator)
      : vocab_(vocab), separator_(separator) {}
  absl::Status ChooseSeparator(const v1::DataSpec& data);
  absl::Status CheckSeparator(const v1::DataSpec& data) const;
  absl::Status ChooseChatFormat(const v1::DataSpec& data);
  using Take = std::function<absl::Status(std::span<const Token> tokens, Token marks)>;
  absl::Status EncodeConversation(const Document& document, const Take& take,
                                  ReadProgress* progress) const;
  absl::Status TooLarge(int32_t token) const;

  int32_t vocab_;
  std::optional<int32_t> separator_;
  std::unique_ptr<TextTokenizer> tokenizer_;  // null if only token files are read
  bool conversations_ = false;                // all documents are some
  ChatFormat format_;                         // of conversations
  std::string chat_format_id_;
};

}  // namespace nsa::train
