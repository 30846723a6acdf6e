#include "worker/train/data/tokenize/tokenizer.h"

#include <algorithm>

#include "worker/train/data/tokenize/gpt2_bpe.h"

namespace nsa::train {
namespace {

constexpr size_t kSlice = size_t{1} << 20;  // bytes between two checks of the progress

class Bytes final : public TextTokenizer {
 public:
  int32_t vocab() const override { return 256; }
  int32_t separator() const override { return 0; }
  absl::Status Encode(std::string_view text, std::vector<Token>* tokens,
                      ReadProgress* progress) const override {
    for (; !text.empty(); text.remove_prefix(std::min(text.size(), kSlice))) {
      if (progress != nullptr && progress->cancelled) return EncodingCancelled();
      const std::string_view slice = text.substr(0, kSlice);
      for (const char c : slice) tokens->push_back(static_cast<unsigned char>(c));
      if (progress != nullptr) progress->bytes += static_cast<int64_t>(slice.size());
    }
    return absl::OkStatus();
  }
  std::string Decode(int32_t token) const override {
    return token == 0 ? "" : std::string(1, static_cast<char>(token));
  }
};

}  // namespace

absl::Status EncodingCancelled() { return absl::CancelledError("tokenizer: cancelled"); }

std::unique_ptr<TextTokenizer> ByteTokenizer() { return std::make_unique<Bytes>(); }

absl::StatusOr<std::unique_ptr<TextTokenizer>> MakeTokenizer(const v1::DataSpec& data) {
  if (data.tokenizer() != v1::TOKENIZER_GPT2) return ByteTokenizer();
  if (data.tokenizer_path().empty()) {
    return absl::FailedPreconditionError(
        "data.tokenizer_path: not set (a folder with GPT-2's vocab.json and merges.txt, or a "
        "tokenizer.json); set it, or use data.tokenizer: byte");
  }
  return LoadGpt2Bpe(data.tokenizer_path());
}

}  // namespace nsa::train
