#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/train/data/tokenize/gpt2_bpe.h"

#include <pcre2.h>

#include <array>
#include <map>
#include <utility>

#include "common/base/byte_characters.h"
#include "common/base/status.h"
#include "common/job/data/tokenizer_files.h"
#include "worker/train/data/tokenize/bpe_files.h"
#include "worker/train/data/tokenize/bpe_merges.h"
#include "worker/train/data/tokenize/gpt2_split.h"
#include "worker/train/data/tokenize/word_table.h"

namespace nsa::train {
namespace {

constexpr size_t kLongestWord = 64;        // bytes of a piece that is looked up as a whole
constexpr size_t kReportEvery = 64 << 10;  // bytes between two looks at whether to go on

class Gpt2Bpe final : public TextTokenizer {
 public:
  ~Gpt2Bpe() override { pcre2_code_free(split_); }

  absl::Status Load(const BpeFiles& files) {
    IndexVocabulary(files);
    for (const auto& [left, right] : files.merges) {
      merges_.Add(files.ids.at(left), files.ids.at(right), files.ids.at(left + right));
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    split_ =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kGpt2Pattern), PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
    if (split_ == nullptr) return absl::InternalError("PCRE2 cannot compile the split pattern");
    pcre2_jit_compile(split_, PCRE2_JIT_COMPLETE);
    return FindWholeWords();
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
    size_t reported = 0;
    for (size_t begin = 0; begin < text.size();) {
      const Piece piece = NextPiece(text, begin, match.get());
      NSA_RETURN_IF_ERROR(Merge(text.substr(begin, piece.begin - begin), &ids, tokens, progress));
      NSA_RETURN_IF_ERROR(
          Merge(text.substr(piece.begin, piece.end - piece.begin), &ids, tokens, progress));
      begin = piece.end;
      if (progress == nullptr || begin - reported < kReportEvery) continue;
      if (progress->cancelled) return EncodingCancelled();
      reported = begin;
    }
    return absl::OkStatus();
  }

 private:
  struct Piece {
    size_t begin;
    size_t end;
  };

  // The next piece of the text from `begin` on. The pattern does not match bytes that are not
  // UTF-8: each run of them is left before the piece.
  Piece NextPiece(std::string_view text, size_t begin, pcre2_match_data* match) const {
    const size_t end = EndOfAsciiPiece(text, begin);
    if (end != 0) return {begin, end};
    const int found = pcre2_match(split_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  begin, 0, match, nullptr);
    if (found <= 0) return {text.size(), text.size()};
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match);
    return {ends[0], ends[1]};
  }

  // Puts every token into the table that the merges make of its bytes.
  absl::Status FindWholeWords() {
    words_.Reserve(bytes_of_.size());
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocab(); ++id) {
      const std::string& bytes = bytes_of_[static_cast<size_t>(id)];
      if (id == separator_ || bytes.empty() || bytes.size() > kLongestWord) continue;
      ids.clear();
      for (const char c : bytes) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      NSA_RETURN_IF_ERROR(merges_.Apply(&ids, nullptr));
      if (ids.size() == 1 && ids[0] == id) words_.Add(bytes, id);
    }
    return absl::OkStatus();
  }

  void IndexVocabulary(const BpeFiles& files) {
    const std::array<std::string, 256> characters = BytesAsCharacters();
    std::map<std::string, char> byte_of;
    for (int byte = 0; byte < 256; ++byte) {
      byte_of.emplace(characters[byte], static_cast<char>(byte));
      byte_ids_[byte] = files.ids.at(characters[byte]);
    }
    separator_ = files.ids.at(files.separator);
    bytes_of_.resize(files.ids.size());
    for (const auto& [text, id] : files.ids) {
      for (size_t i = 0; i < text.size();) {
        const size_t length = (text[i] & 0x80) != 0 ? 2 : 1;
        const auto byte = byte_of.find(text.substr(i, length));
        if (byte != byte_of.end()) bytes_of_[id] += byte->second;
        i += length;
      }
    }
  }

  // Appends the tokens of a piece, which is divided if it is too long.
  absl::Status Merge(std::string_view piece, std::vector<int32_t>* ids,
                     std::vector<uint16_t>* tokens, ReadProgress* progress) const {
    if (piece.empty()) return absl::OkStatus();
    if (piece.size() <= kLongestWord) {
      if (const int32_t word = words_.Find(piece); word >= 0) {
        tokens->push_back(static_cast<uint16_t>(word));
        if (progress != nullptr) progress->bytes += std::ssize(piece);
        return absl::OkStatus();
      }
    }
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

  std::vector<std::string> bytes_of_;  // by id
  std::array<int32_t, 256> byte_ids_{};
  BpeMerges merges_;
  WordTable words_;
  int32_t separator_ = 0;
  pcre2_code* split_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadGpt2Bpe(const std::filesystem::path& path) {
  const std::vector<std::filesystem::path> files = TokenizerFilesOf(path);
  const bool json = files.size() == 1;
  NSA_ASSIGN_OR_RETURN(const BpeFiles read,
                       json ? ReadTokenizerJson(files[0]) : ReadGpt2Files(path));
  auto tokenizer = std::make_unique<Gpt2Bpe>();
  NSA_RETURN_IF_ERROR(tokenizer->Load(read));
  return tokenizer;
}

}  // namespace nsa::train
