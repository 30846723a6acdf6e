#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/train/data/tokenize/gpt2_bpe.h"

#include <pcre2.h>

#include <array>
#include <fstream>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/byte_characters.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/tokenize/bpe_merges.h"

namespace nsa::train {
namespace {

constexpr char kSplit[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kEndOfText[] = "<|endoftext|>";

class Gpt2Bpe final : public TextTokenizer {
 public:
  ~Gpt2Bpe() override { pcre2_code_free(split_); }

  absl::Status Load(const std::filesystem::path& folder) {
    NSA_RETURN_IF_ERROR(LoadVocabulary(folder / "vocab.json"));
    NSA_RETURN_IF_ERROR(LoadMerges(folder / "merges.txt"));
    int error = 0;
    PCRE2_SIZE offset = 0;
    split_ =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kSplit), PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
    if (split_ == nullptr) return absl::InternalError("PCRE2 cannot compile the split pattern");
    pcre2_jit_compile(split_, PCRE2_JIT_COMPLETE);
    return absl::OkStatus();
  }

  int32_t vocab() const override { return static_cast<int32_t>(bytes_of_.size()); }
  int32_t separator() const override { return separator_; }
  std::string Decode(int32_t token) const override {
    return token == separator_ ? "" : bytes_of_[token];
  }

  absl::Status Encode(std::string_view text, std::vector<uint16_t>* tokens,
                      ReadProgress* progress) const override {
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
        pcre2_match_data_create_from_pattern(split_, nullptr), pcre2_match_data_free);
    std::vector<int32_t> ids;
    size_t begin = 0;
    while (begin < text.size()) {
      if (progress != nullptr && progress->cancelled) return EncodingCancelled();
      const int found = pcre2_match(split_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                    begin, 0, match.get(), nullptr);
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
      // The pattern does not match bytes that are not UTF-8. Each run of them is a separate piece.
      const size_t piece_begin = found > 0 ? ends[0] : text.size();
      const size_t piece_end = found > 0 ? ends[1] : text.size();
      NSA_RETURN_IF_ERROR(Merge(text.substr(begin, piece_begin - begin), &ids, tokens, progress));
      NSA_RETURN_IF_ERROR(
          Merge(text.substr(piece_begin, piece_end - piece_begin), &ids, tokens, progress));
      begin = piece_end;
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status CheckSize(const std::filesystem::path& path) {
    std::error_code error;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (!error && bytes <= limits::kVocabularyBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes (at most %d)", path.string(), error ? -1 : bytes, limits::kVocabularyBytes));
  }

  absl::Status LoadVocabulary(const std::filesystem::path& path) {
    std::ifstream file(path);
    if (!file) return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be opened"));
    NSA_RETURN_IF_ERROR(CheckSize(path));
    const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a JSON object"));
    }
    if (json.size() > 65536) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %d tokens (at most 65536)", path.string(), json.size()));
    }
    for (const auto& [text, id] : json.items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= json.size()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: token %s has id %s (0 … %d, each once)", path.string(), text,
                            id.dump(), json.size() - 1));
      }
      ids_.emplace(text, id.get<int32_t>());
    }
    return IndexVocabulary(path);
  }

  absl::Status IndexVocabulary(const std::filesystem::path& path) {
    const std::array<std::string, 256> characters = BytesAsCharacters();
    std::map<std::string, char> byte_of;
    for (int byte = 0; byte < 256; ++byte) {
      byte_of.emplace(characters[byte], static_cast<char>(byte));
      const auto id = ids_.find(characters[byte]);
      if (id == ids_.end()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: no token for byte %d", path.string(), byte));
      }
      byte_ids_[byte] = id->second;
    }
    const auto separator = ids_.find(kEndOfText);
    if (separator == ids_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path.string(), ": no ", kEndOfText));
    }
    separator_ = separator->second;
    bytes_of_.resize(ids_.size());
    for (const auto& [text, id] : ids_) {
      for (size_t i = 0; i < text.size();) {
        const size_t length = (text[i] & 0x80) != 0 ? 2 : 1;
        const auto byte = byte_of.find(text.substr(i, length));
        if (byte != byte_of.end()) bytes_of_[id] += byte->second;
        i += length;
      }
    }
    return absl::OkStatus();
  }

  absl::Status LoadMerges(const std::filesystem::path& path) {
    std::ifstream file(path);
    if (!file) return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be opened"));
    NSA_RETURN_IF_ERROR(CheckSize(path));
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      if (line.empty() || line.rfind("#version", 0) == 0) continue;
      const std::vector<std::string> parts = absl::StrSplit(line, ' ');
      const auto left = ids_.find(parts[0]);
      const auto right = parts.size() == 2 ? ids_.find(parts[1]) : ids_.end();
      const auto merged = parts.size() == 2 ? ids_.find(parts[0] + parts[1]) : ids_.end();
      if (left == ids_.end() || right == ids_.end() || merged == ids_.end()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s:%d: '%s' (two tokens that are in vocab.json, as is their concatenation)",
            path.string(), number, line));
      }
      merges_.Add(left->second, right->second, merged->second);
    }
    return absl::OkStatus();
  }

  // Appends the tokens of a piece, which is divided if it is too long.
  absl::Status Merge(std::string_view piece, std::vector<int32_t>* ids,
                     std::vector<uint16_t>* tokens, ReadProgress* progress) const {
    while (!piece.empty()) {
      ids->clear();
      for (const char c : piece.substr(0, BpeMerges::kLongestPiece)) {
        ids->push_back(byte_ids_[static_cast<unsigned char>(c)]);
      }
      piece.remove_prefix(ids->size());
      NSA_RETURN_IF_ERROR(merges_.Apply(ids, progress));
      for (const int32_t id : *ids) tokens->push_back(static_cast<uint16_t>(id));
    }
    return absl::OkStatus();
  }

  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::string> bytes_of_;  // by id
  std::array<int32_t, 256> byte_ids_{};
  BpeMerges merges_;
  int32_t separator_ = 0;
  pcre2_code* split_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadGpt2Bpe(const std::filesystem::path& folder) {
  auto tokenizer = std::make_unique<Gpt2Bpe>();
  NSA_RETURN_IF_ERROR(tokenizer->Load(folder));
  return tokenizer;
}

}  // namespace nsa::train
