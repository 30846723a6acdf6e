#include "worker/train/data/tokenize/tokenizer.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/data/tokenizer_files.h"
#include "worker/train/data/tokenize/bpe.h"

namespace nsa::train {
namespace {

constexpr size_t kPart = size_t{1} << 20;  // bytes of a text, also between two looks at `cancelled`

class BytesOfText final : public TextTokenizer::Encoding {
 public:
  explicit BytesOfText(std::string_view text) : rest_(text) {}

  bool done() const override { return rest_.empty(); }

  absl::Status Next(size_t bytes, std::vector<Token>* tokens, ReadProgress* progress) override {
    while (bytes > 0 && !rest_.empty()) {
      if (progress != nullptr && progress->cancelled) return EncodingCancelled();
      const std::string_view slice = rest_.substr(0, std::min(kPart, bytes));
      for (const char c : slice) tokens->push_back(static_cast<unsigned char>(c));
      if (progress != nullptr) progress->bytes += std::ssize(slice);
      rest_.remove_prefix(slice.size());
      bytes -= slice.size();
    }
    return absl::OkStatus();
  }

 private:
  std::string_view rest_;
};

class Bytes final : public TextTokenizer {
 public:
  int32_t vocab() const override { return 256; }
  int32_t separator() const override { return 0; }
  std::string Decode(int32_t token) const override {
    return token == 0 ? "" : std::string(1, static_cast<char>(token));
  }
  std::optional<int32_t> TokenSpelled(std::string_view) const override { return std::nullopt; }

 private:
  std::unique_ptr<Encoding> Begin(std::string_view text, TextPlace) const override {
    return std::make_unique<BytesOfText>(text);
  }
};

}  // namespace

absl::Status TextTokenizer::Encode(std::string_view text, std::vector<Token>* tokens,
                                   ReadProgress* progress, TextPlace place) const {
  return Begin(text, place)->Next(std::numeric_limits<size_t>::max(), tokens, progress);
}

absl::Status TextTokenizer::EncodeInParts(std::string_view text, const Append& append,
                                          ReadProgress* progress, TextPlace place) const {
  std::vector<Token> tokens;
  tokens.reserve(std::min(kPart, text.size()) / 3);
  for (const std::unique_ptr<Encoding> encoding = Begin(text, place); !encoding->done();) {
    tokens.clear();
    NSA_RETURN_IF_ERROR(encoding->Next(kPart, &tokens, progress));
    NSA_RETURN_IF_ERROR(append(tokens));
  }
  return absl::OkStatus();
}

bool AddsSpace(const TextTokenizer& tokenizer, std::span<const Token> tokens, size_t bytes) {
  if (tokens.empty() || !tokenizer.Decode(tokens.front()).starts_with(' ')) return false;
  size_t decoded = 0;
  for (const Token token : tokens) decoded += tokenizer.Decode(token).size();
  return decoded == bytes + 1;
}

absl::Status EncodingCancelled() { return absl::CancelledError("tokenizer: cancelled"); }

std::unique_ptr<TextTokenizer> ByteTokenizer() { return std::make_unique<Bytes>(); }

absl::StatusOr<std::unique_ptr<TextTokenizer>> MakeTokenizer(const v1::DataSpec& data) {
  if (!HasTokenizerFiles(data.tokenizer())) return ByteTokenizer();
  if (!data.tokenizer_path().empty()) {
    absl::StatusOr<std::unique_ptr<TextTokenizer>> loaded =
        LoadBpe(data.tokenizer(), data.tokenizer_path());
    if (!absl::IsNotFound(loaded.status())) return loaded;
    return WithMessage(loaded.status(),
                       absl::StrCat("data.tokenizer_path: ", loaded.status().message(), "; name ",
                                    TokenizerFileWords(data.tokenizer())));
  }
  return absl::FailedPreconditionError(absl::StrCat("data.tokenizer_path: not set (",
                                                    TokenizerFileWords(data.tokenizer()),
                                                    "); set it, or use data.tokenizer: byte"));
}

}  // namespace nsa::train
