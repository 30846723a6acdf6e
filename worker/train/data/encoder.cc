#include "worker/train/data/encoder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data_source.h"

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
  return encoder;
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
  const auto take = [&](std::span<const Token> tokens) -> absl::Status {
    for (const Token token : tokens) {
      encoded.largest_token = std::max(encoded.largest_token, token);
      if (token >= vocab_) return TooLarge(token);
    }
    encoded.tokens += std::ssize(tokens);
    encoded.inner_separators += std::count(tokens.begin(), tokens.end(), separator);
    return append(tokens);
  };
  absl::Status status = separated ? take({&separator, 1}) : absl::OkStatus();
  if (status.ok()) {
    status = document.tokens.empty() ? tokenizer_->EncodeInParts(document.text, take, progress)
                                     : take(document.tokens);
  }
  if (absl::IsInvalidArgument(status)) return Annotate(status, PlaceOfFault(document, vocab_));
  NSA_RETURN_IF_ERROR(status);
  encoded.inner_separators -= separated ? 1 : 0;
  return encoded;
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
