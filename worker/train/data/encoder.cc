#include "worker/train/data/encoder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data_source.h"

namespace nsa::train {

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
  if (separator_or_none() >= vocab_) return TooLarge("the document separator", *separator_);
  if (separator_or_none() != kNoSeparator || !data.document_mask()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data.document_mask: true, but there is no separator (document_mask needs one); ",
      std::string(kSetSeparator)));
}

absl::StatusOr<DocumentEncoder::Encoded> DocumentEncoder::Encode(const Document& document,
                                                                 std::vector<Token>* tokens,
                                                                 ReadProgress* progress) const {
  const int32_t separator = separator_or_none();
  const bool separated = separator != kNoSeparator;
  tokens->assign(separated ? 1 : 0, separator);
  if (document.tokens.empty()) {
    NSA_RETURN_IF_ERROR(tokenizer_->Encode(document.text, tokens, progress));
  } else {
    tokens->insert(tokens->end(), document.tokens.begin(), document.tokens.end());
  }
  Encoded encoded;
  for (const Token token : *tokens) {
    encoded.largest_token = std::max(encoded.largest_token, token);
  }
  if (encoded.largest_token >= vocab_) return TooLarge(document.place, encoded.largest_token);
  encoded.inner_separators =
      std::count(tokens->begin(), tokens->end(), separator) - (separated ? 1 : 0);
  return encoded;
}

absl::Status DocumentEncoder::TooLarge(const std::string& place, int32_t token) const {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: token %d (model.vocab is %d); raise model.vocab or use the matching tokenizer", place,
      token, vocab_));
}

}  // namespace nsa::train
