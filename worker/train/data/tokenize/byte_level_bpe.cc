#include "worker/train/data/tokenize/byte_level_bpe.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/characters/byte_characters.h"
#include "common/base/status.h"
#include "common/job/data/tokenizer_files.h"
#include "worker/train/data/tokenize/bpe_files.h"
#include "worker/train/data/tokenize/bpe_merges.h"
#include "worker/train/data/tokenize/splitter.h"
#include "worker/train/data/tokenize/text/added_tokens.h"
#include "worker/train/data/tokenize/text/nfc.h"
#include "worker/train/data/tokenize/text/pieces.h"
#include "worker/train/data/tokenize/word_table.h"

namespace nsa::train {
namespace {

constexpr int32_t kNoToken = -1;           // of a byte that no UTF-8 has
constexpr size_t kLongestWord = 64;        // bytes of a piece that is looked up as a whole
constexpr size_t kReportBytes = 64 << 10;  // bytes between two looks at whether to go on

class ByteLevelBpe final : public TextTokenizer {
 public:
  absl::Status Load(const BpeFiles& files) {
    nfc_ = files.nfc;
    for (const SplitStep& step : files.split) {
      absl::StatusOr<Splitter> splitter = Splitter::Make(step.pattern, step.ascii);
      if (!splitter.ok()) return Annotate(splitter.status(), "pre_tokenizer: pattern");
      splitters_.push_back(*std::move(splitter));
    }
    NSA_RETURN_IF_ERROR(FindAddedTokens(files));
    IndexVocabulary(files);
    for (const auto& [left, right] : files.merges) {
      if (merges_.Add(files.ids.at(left), files.ids.at(right), files.ids.at(left + right))) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat("duplicate merge '", left, " ", right, "'"));
    }
    return FindWholeWords(files);
  }

  int32_t vocab() const override { return static_cast<int32_t>(bytes_of_.size()); }
  int32_t separator() const override { return separator_; }
  std::optional<Token> ControlToken(const std::string& spelling) const override {
    const auto found = control_.find(spelling);
    return found == control_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string Decode(int32_t token) const override {
    return token == separator_ ? "" : bytes_of_[static_cast<size_t>(token)];
  }

 private:
  class EncodingOfText;

  std::unique_ptr<Encoding> Begin(std::string_view text) const override;

  // Special tokens first: of two with one text the first counts.
  absl::Status FindAddedTokens(const BpeFiles& files) {
    for (const bool special : {true, false}) {
      for (const AddedToken& token : files.added) {
        if (token.special != special) continue;
        std::string storage;
        std::string_view text = token.text;
        if (token.normalized && nfc_) {
          NSA_ASSIGN_OR_RETURN(text, ToNfc(token.text, &storage));
        }
        NSA_RETURN_IF_ERROR(
            Annotate((token.normalized ? added_normalized_ : added_)
                         .Add(std::string(text), token.id, special),
                     absl::StrCat("added_tokens: the token with the id ", token.id)));
      }
    }
    return absl::OkStatus();
  }

  // Puts every token into the table that the merges make of its bytes, or every token of the
  // vocabulary if the files say so.
  absl::Status FindWholeWords(const BpeFiles& files) {
    words_.Reserve(files.ids.size());
    std::vector<int32_t> ids;
    for (const auto& [text, id] : files.ids) {
      const std::string& bytes = bytes_of_[static_cast<size_t>(id)];
      if (bytes.empty() || files.added_texts.count(text) > 0) continue;
      if (!files.whole_words_first) {
        if (bytes.size() > kLongestWord) continue;
        ids.clear();
        for (const char c : bytes) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
        NSA_RETURN_IF_ERROR(merges_.Apply(&ids, nullptr));
        if (ids.size() != 1 || ids[0] != id) continue;
      } else if (!BytesOf(text)) {
        continue;
      }
      words_.Add(bytes, id);
      longest_word_ = std::max(longest_word_, bytes.size());
    }
    return absl::OkStatus();
  }

  void IndexVocabulary(const BpeFiles& files) {
    const std::array<std::string, 256> characters = BytesAsCharacters();
    byte_of_.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      const std::string& character = characters[byte];
      byte_of_[CodeAt(character, 0)] = static_cast<int16_t>(byte);
      const auto token = files.ids.find(character);
      byte_ids_[byte] = token == files.ids.end() ? kNoToken : token->second;
    }
    separator_ = files.ids.at(files.separator);
    control_[files.separator] = separator_;
    for (const bool special : {true, false}) {  // of two with one text a special one counts
      for (const AddedToken& token : files.added) {
        if (token.special == special) control_.emplace(token.text, token.id);
      }
    }
    bytes_of_.resize(static_cast<size_t>(files.size));
    for (const auto& [text, id] : files.ids) {
      const bool plain = files.added_texts.count(text) == 0;
      bytes_of_[static_cast<size_t>(id)] = (plain ? BytesOf(text) : std::nullopt).value_or(text);
    }
  }

  // The character of one or two bytes of UTF-8 at `at`; 0 for a longer one.
  static size_t CodeAt(const std::string& text, size_t at) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) return first;
    if ((first & 0xe0) != 0xc0 || at + 1 == text.size()) return 0;
    return (first & 0x1fu) << 6 | (static_cast<unsigned char>(text[at + 1]) & 0x3fu);
  }

  // The bytes that a token of a file stands for; nothing for one that is not written as bytes.
  std::optional<std::string> BytesOf(const std::string& text) const {
    std::string bytes;
    for (size_t at = 0; at < text.size(); at += (text[at] & 0x80) != 0 ? 2 : 1) {
      const int16_t byte = byte_of_[CodeAt(text, at)];
      if (byte < 0) return std::nullopt;
      bytes += static_cast<char>(byte);
    }
    return bytes;
  }

  // Appends the tokens of a piece, which is divided if it is too long.
  absl::Status Merge(std::string_view piece, std::vector<int32_t>* ids, std::vector<Token>* tokens,
                     ReadProgress* progress) const {
    if (piece.empty()) return absl::OkStatus();
    if (piece.size() <= longest_word_) {
      if (const int32_t word = words_.Find(piece); word >= 0) {
        tokens->push_back(word);
        if (progress != nullptr) progress->bytes += std::ssize(piece);
        return absl::OkStatus();
      }
    }
    while (!piece.empty()) {
      ids->clear();
      int32_t all = 0;
      for (const char c : piece.substr(0, BpeMerges::kLongestPiece)) {
        ids->push_back(byte_ids_[static_cast<unsigned char>(c)]);
        all |= ids->back();
      }
      if (all < 0) return NoToken(piece);
      piece.remove_prefix(ids->size());
      NSA_RETURN_IF_ERROR(merges_.Apply(ids, progress));
      tokens->insert(tokens->end(), ids->begin(), ids->end());
    }
    return absl::OkStatus();
  }

  // The error of a piece with a byte that has no token.
  absl::Status NoToken(std::string_view piece) const {
    const auto byte = std::find_if(piece.begin(), piece.end(), [&](char c) {
      return byte_ids_[static_cast<unsigned char>(c)] == kNoToken;
    });
    return absl::InvalidArgumentError(absl::StrFormat(
        "byte %d, which no UTF-8 has, has no token; make the text UTF-8, or use a tokenizer with a "
        "token for each byte",
        static_cast<unsigned char>(*byte)));
  }

  std::array<int16_t, 2048> byte_of_{};  // by the character that stands for it; −1: none does
  std::vector<std::string> bytes_of_;    // by id
  std::array<int32_t, 256> byte_ids_{};
  BpeMerges merges_;
  WordTable words_;
  size_t longest_word_ = 0;
  int32_t separator_ = 0;
  std::unordered_map<std::string, Token> control_;  // added tokens, by their spelling
  bool nfc_ = false;
  AddedTokens added_;             // looked for in the text as it is
  AddedTokens added_normalized_;  // looked for in the normalized text between those
  std::vector<Splitter> splitters_;
};

// Added tokens are cut out of the text, what is between them is normalized, further added tokens
// are cut out of that, and the rest is divided into pieces.
class ByteLevelBpe::EncodingOfText final : public TextTokenizer::Encoding {
 public:
  EncodingOfText(const ByteLevelBpe& bpe, std::string_view text)
      : bpe_(bpe), as_it_is_(bpe.added_, text), pieces_(bpe.splitters_) {}

  bool done() const override { return pieces_.done() && normalized_.done() && as_it_is_.done(); }

  absl::Status Next(size_t bytes, std::vector<Token>* tokens, ReadProgress* progress) override {
    size_t taken = 0;
    size_t reported = 0;
    while (taken < bytes && !done()) {
      NSA_ASSIGN_OR_RETURN(const size_t more, NextPiece(tokens, progress));
      taken += more;
      if (progress == nullptr || taken - reported < kReportBytes) continue;
      if (progress->cancelled) return EncodingCancelled();
      reported = taken;
    }
    return absl::OkStatus();
  }

 private:
  // Encodes a piece or an added token, if one is at hand, or else prepares the next stretch of
  // text. Returns how many bytes are encoded.
  absl::StatusOr<size_t> NextPiece(std::vector<Token>* tokens, ReadProgress* progress) {
    if (!pieces_.done()) {
      std::string_view piece;
      NSA_RETURN_IF_ERROR(pieces_.Next(&piece));
      NSA_RETURN_IF_ERROR(bpe_.Merge(piece, &ids_, tokens, progress));
      return piece.size();
    }
    const bool within = !normalized_.done();
    const AddedTokens::Stretch stretch = within ? normalized_.Next() : as_it_is_.Next();
    if (stretch.token != AddedTokens::kNone) {
      tokens->push_back(stretch.token);
      if (progress != nullptr) progress->bytes += std::ssize(stretch.text);
      return stretch.text.size();
    }
    if (within) {
      pieces_.Start(stretch.text);
    } else {
      NSA_RETURN_IF_ERROR(Normalize(stretch.text, progress));
    }
    return 0;
  }

  absl::Status Normalize(std::string_view text, ReadProgress* progress) {
    std::string_view normalized = text;
    if (bpe_.nfc_) {
      NSA_ASSIGN_OR_RETURN(normalized, ToNfc(text, &storage_));
      // What is encoded counts as what was read.
      if (progress != nullptr) progress->bytes += std::ssize(text) - std::ssize(normalized);
    }
    normalized_ = AddedTokens::Walk(bpe_.added_normalized_, normalized);
    return absl::OkStatus();
  }

  const ByteLevelBpe& bpe_;
  AddedTokens::Walk as_it_is_;
  std::string storage_;  // of the normalized text, if it is another one
  AddedTokens::Walk normalized_;
  Pieces pieces_;
  std::vector<int32_t> ids_;
};

std::unique_ptr<TextTokenizer::Encoding> ByteLevelBpe::Begin(std::string_view text) const {
  return std::make_unique<EncodingOfText>(*this, text);
}

absl::StatusOr<BpeFiles> Read(v1::Tokenizer tokenizer,
                              const std::vector<std::filesystem::path>& files) {
  if (tokenizer == v1::TOKENIZER_BPE) return ReadTokenizerJson(files[0], BpeKind::kAny);
  if (files.size() == 1) return ReadTokenizerJson(files[0], BpeKind::kGpt2);
  return ReadGpt2Files(files[0].parent_path());
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadByteLevelBpe(v1::Tokenizer tokenizer,
                                                                const std::filesystem::path& path) {
  const std::vector<std::filesystem::path> files = TokenizerFilesOf(tokenizer, path);
  NSA_ASSIGN_OR_RETURN(const BpeFiles read, Read(tokenizer, files));
  auto loaded = std::make_unique<ByteLevelBpe>();
  NSA_RETURN_IF_ERROR(Annotate(loaded->Load(read), files.back().string()));
  return loaded;
}

}  // namespace nsa::train
