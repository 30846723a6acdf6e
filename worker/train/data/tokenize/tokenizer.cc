#include "worker/train/data/tokenize/tokenizer.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/job/data/tokenizer_files.h"
#include "worker/train/data/tokenize/byte_level_bpe.h"

namespace nsa::train {
namespace {

constexpr size_t kPart = size_t{1} << 20;  // bytes of a text, also between two looks at `cancelled`

class Bytes final : public TextTokenizer {
 public:
  int32_t vocab() const override { return 256; }
  int32_t separator() const override { return 0; }
  std::string Decode(int32_t token) const override {
    return token == 0 ? "" : std::string(1, static_cast<char>(token));
  }

 private:
  absl::StatusOr<size_t> EncodePart(std::string_view text, size_t begin, size_t stop,
                                    std::vector<Token>* tokens,
                                    ReadProgress* progress) const override {
    while (begin < stop) {
      if (progress != nullptr && progress->cancelled) return EncodingCancelled();
      const std::string_view slice = text.substr(begin, std::min(kPart, stop - begin));
      for (const char c : slice) tokens->push_back(static_cast<unsigned char>(c));
      if (progress != nullptr) progress->bytes += std::ssize(slice);
      begin += slice.size();
    }
    return begin;
  }
};

}  // namespace

absl::Status TextTokenizer::Encode(std::string_view text, std::vector<Token>* tokens,
                                   ReadProgress* progress) const {
  return EncodePart(text, 0, text.size(), tokens, progress).status();
}

absl::Status TextTokenizer::EncodeInParts(std::string_view text, const Append& append,
                                          ReadProgress* progress) const {
  std::vector<Token> tokens;
  tokens.reserve(std::min(kPart, text.size()) / 3);
  for (size_t begin = 0; begin < text.size();) {
    tokens.clear();
    const size_t stop = begin + std::min(kPart, text.size() - begin);
    NSA_ASSIGN_OR_RETURN(begin, EncodePart(text, begin, stop, &tokens, progress));
    NSA_RETURN_IF_ERROR(append(tokens));
  }
  return absl::OkStatus();
}

absl::Status EncodingCancelled() { return absl::CancelledError("tokenizer: cancelled"); }

std::unique_ptr<TextTokenizer> ByteTokenizer() { return std::make_unique<Bytes>(); }

absl::StatusOr<std::unique_ptr<TextTokenizer>> MakeTokenizer(const v1::DataSpec& data) {
  if (!HasTokenizerFiles(data.tokenizer())) return ByteTokenizer();
  if (!data.tokenizer_path().empty()) {
    return LoadByteLevelBpe(data.tokenizer(), data.tokenizer_path());
  }
  return absl::FailedPreconditionError(absl::StrCat("data.tokenizer_path: not set (",
                                                    TokenizerFileWords(data.tokenizer()),
                                                    "); set it, or use data.tokenizer: byte"));
}

}  // namespace nsa::train
