#include "worker/train/data/encoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/chat/render.h"
#include "common/job/data/conversations.h"
#include "common/job/data/data_files.h"
#include "common/job/data_source.h"
#include "worker/train/data/tokenize/chat_tokens.h"

namespace nsa::train {
namespace {

// Of a token file, the first token that is not below the vocabulary.
std::string PlaceOfFault(const Document& document, int32_t vocab) {
  const auto large = std::ranges::find_if(document.tokens, [&](Token t) { return t >= vocab; });
  if (large == document.tokens.end()) return document.place;
  return absl::StrFormat("%s: token %d", document.file,
                         document.first_token + (large - document.tokens.begin()));
}

}  // namespace

absl::StatusOr<DocumentEncoder> DocumentEncoder::Make(const v1::DataSpec& data, int32_t vocab,
                                                      std::optional<int32_t> prepared) {
  DocumentEncoder encoder(vocab, prepared);
  NSA_RETURN_IF_ERROR(encoder.ChooseSeparator(data));
  NSA_RETURN_IF_ERROR(encoder.CheckSeparator(data));
  NSA_RETURN_IF_ERROR(encoder.ChooseChatFormat(data));
  return encoder;
}

absl::Status DocumentEncoder::ChooseChatFormat(const v1::DataSpec& data) {
  conversations_ = LearnsAnswers(data);
  if (!conversations_ || !ReadsText(data)) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(format_, ChatFormatOf(data));
  chat_format_id_ = ChatFormatId(format_);
  return absl::OkStatus();
}

absl::Status DocumentEncoder::ChooseSeparator(const v1::DataSpec& data) {
  if (data.has_separator() && !ReadsOnlyTokens(data)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.separator: %s (only for data.source: tokens); remove it", data.separator()));
  }
  const bool named = data.tokenizer() != v1::TOKENIZER_UNSPECIFIED;
  if (ReadsText(data) || (named && !separator_ && !data.has_separator())) {
    NSA_ASSIGN_OR_RETURN(tokenizer_, MakeTokenizer(data));
    separator_ = tokenizer_->separator();
  }
  if (data.has_separator()) {
    NSA_ASSIGN_OR_RETURN(separator_, ParseSeparator(data.separator()));
  }
  return absl::OkStatus();
}

absl::Status DocumentEncoder::CheckSeparator(const v1::DataSpec& data) const {
  if (separator_or_none() >= vocab_) {
    return Annotate(TooLarge(*separator_), "the document separator");
  }
  if (separator_or_none() != kNoSeparator || !data.document_mask()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data.document_mask: true, but there is no separator (document_mask needs one); ",
      std::string(kSetSeparator)));
}

absl::StatusOr<DocumentEncoder::Encoded> DocumentEncoder::Encode(
    const Document& document, const TextTokenizer::Append& append, ReadProgress* progress) const {
  const Token separator = separator_or_none();
  const bool separated = separator != kNoSeparator;
  Encoded encoded;
  std::vector<Token> marked;
  const auto take = [&](std::span<const Token> tokens, Token marks) -> absl::Status {
    for (const Token token : tokens) {
      encoded.largest_token = std::max(encoded.largest_token, token);
      if (token >= vocab_) return TooLarge(token);
    }
    encoded.tokens += std::ssize(tokens);
    if ((marks & kAnswerMark) != 0) encoded.answer_tokens += std::ssize(tokens);
    if (!conversations_) {
      encoded.inner_separators += std::count(tokens.begin(), tokens.end(), separator);
    }
    if (marks == 0) return append(tokens);
    marked.assign(tokens.begin(), tokens.end());
    for (Token& token : marked) token |= marks;
    return append(marked);
  };
  absl::Status status;
  if (conversations_) {
    status = EncodeConversation(document, take, progress);
  } else {
    if (separated) status = take({&separator, 1}, 0);
    if (status.ok() && !document.tokens.empty()) {
      status = take(document.tokens, 0);
    } else if (status.ok()) {
      status = tokenizer_->EncodeInParts(
          document.text, [&](std::span<const Token> t) { return take(t, 0); }, progress);
    }
  }
  if (absl::IsInvalidArgument(status)) return Annotate(status, PlaceOfFault(document, vocab_));
  NSA_RETURN_IF_ERROR(status);
  encoded.inner_separators -= separated && !conversations_ ? 1 : 0;
  return encoded;
}

absl::Status DocumentEncoder::EncodeConversation(const Document& document, const Take& take,
                                                 ReadProgress* progress) const {
  if (document.messages.empty()) {
    return absl::InvalidArgumentError(
        "no conversation (data.loss_on: assistant); set data.source to jsonl or parquet");
  }
  NSA_ASSIGN_OR_RETURN(const std::vector<ChatPiece> pieces,
                       RenderConversation(format_, document.messages));
  Token begin = kBeginMark;  // of the first token, which is the separator
  return EncodeChat(
      *tokenizer_, pieces,
      [&](std::span<const Token> tokens, bool answer) {
        return take(tokens, std::exchange(begin, 0) | (answer ? kAnswerMark : 0));
      },
      progress);
}

absl::StatusOr<DocumentEncoder::Encoded> DocumentEncoder::Encode(const Document& document,
                                                                 std::vector<Token>* tokens,
                                                                 ReadProgress* progress) const {
  tokens->clear();
  return Encode(
      document,
      [&](std::span<const Token> part) {
        tokens->insert(tokens->end(), part.begin(), part.end());
        return absl::OkStatus();
      },
      progress);
}

absl::Status DocumentEncoder::TooLarge(int32_t token) const {
  return absl::InvalidArgumentError(absl::StrFormat(
      "token %d (model.vocab is %d); raise model.vocab or use the matching tokenizer", token,
      vocab_));
}

}  // namespace nsa::train
