#include "worker/train/data/tokenize/bpe.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/data/tokenizer_files.h"
#include "worker/train/data/tokenize/bpe_files.h"
#include "worker/train/data/tokenize/bpe_merges.h"
#include "worker/train/data/tokenize/first_tokens.h"
#include "worker/train/data/tokenize/splitter.h"
#include "worker/train/data/tokenize/text/added_tokens.h"
#include "worker/train/data/tokenize/text/nfc.h"
#include "worker/train/data/tokenize/text/pieces.h"
#include "worker/train/data/tokenize/text/spaces.h"
#include "worker/train/data/tokenize/word_table.h"

namespace nsa::train {
namespace {

constexpr size_t kLongestWord = 64;        // bytes of a piece that is looked up as a whole
constexpr size_t kReportBytes = 64 << 10;  // bytes between two looks at whether to go on

// The prefix of a stretch of text, which begins the text or follows an added token.
SpacePrefix PrefixOf(SpaceMarks spaces, TextPlace place) {
  const bool begins = place != TextPlace::kWithin;
  if (spaces == SpaceMarks::kEach && begins) return SpacePrefix::kMark;
  if (spaces == SpaceMarks::kEachOwn && begins) return SpacePrefix::kMarkOrOwn;
  if (spaces == SpaceMarks::kFirst && place == TextPlace::kFirst) return SpacePrefix::kMarkOrOwn;
  return SpacePrefix::kNone;
}

// The normalizer of the files: what a stretch of text between added tokens becomes.
class Normalizer {
 public:
  void Load(const BpeFiles& files) {
    nfc_ = files.nfc;
    spaces_ = files.normal_spaces;
  }

  // `text` itself if it does not change, else `*storage`. The errors of ToNfc().
  absl::StatusOr<std::string_view> Normalize(std::string_view text, TextPlace place,
                                             std::string* storage) const {
    std::string composed;
    if (nfc_) {
      NSA_ASSIGN_OR_RETURN(text, ToNfc(text, &composed));
    }
    std::string marked;
    if (spaces_ != SpaceMarks::kNone) text = MarkSpaces(text, PrefixOf(spaces_, place), &marked);
    if (text.data() != composed.data() && text.data() != marked.data()) return text;
    *storage = std::move(text.data() == marked.data() ? marked : composed);
    return std::string_view(*storage);
  }

 private:
  bool nfc_ = false;
  SpaceMarks spaces_ = SpaceMarks::kNone;
};

class Bpe final : public TextTokenizer {
 public:
  absl::Status Load(const BpeFiles& files) {
    normalizer_.Load(files);
    spaces_ = files.spaces;
    for (const SplitStep& step : files.split) {
      absl::StatusOr<Splitter> splitter = Splitter::Make(step.pattern, step.ascii);
      if (!splitter.ok()) return Annotate(splitter.status(), "pre_tokenizer: pattern");
      splitters_.push_back(*std::move(splitter));
    }
    NSA_RETURN_IF_ERROR(FindAddedTokens(files));
    first_ = FirstTokens::Of(files);
    separator_ = files.ids.at(files.separator);
    bytes_of_.resize(static_cast<size_t>(files.size));
    for (const auto& [text, id] : files.ids) {
      const bool added = files.added_texts.count(text) > 0;
      bytes_of_[static_cast<size_t>(id)] = first_->Decoded(text, added);
    }
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
  std::string Decode(int32_t token) const override {
    return token == separator_ ? "" : bytes_of_[static_cast<size_t>(token)];
  }
  std::optional<int32_t> TokenSpelled(std::string_view spelling) const override {
    const auto found = spelled_.find(std::string(spelling));
    if (found == spelled_.end()) return std::nullopt;
    return found->second;
  }

 private:
  class EncodingOfText;

  std::unique_ptr<Encoding> Begin(std::string_view text, TextPlace place) const override;

  // Special tokens first: of two with one text the first counts.
  absl::Status FindAddedTokens(const BpeFiles& files) {
    for (const std::string& text : files.added_texts) spelled_.emplace(text, files.ids.at(text));
    for (const bool special : {true, false}) {
      for (const AddedToken& token : files.added) {
        if (token.special != special) continue;
        std::string storage;
        std::string_view text = token.text;
        if (token.normalized) {
          NSA_ASSIGN_OR_RETURN(text, normalizer_.Normalize(text, TextPlace::kBehind, &storage));
        }
        const AddedTokens::Rules rules = {.id = token.id,
                                          .special = special,
                                          .lstrip = token.lstrip,
                                          .rstrip = token.rstrip,
                                          .single_word = token.single_word};
        NSA_RETURN_IF_ERROR(
            Annotate((token.normalized ? added_normalized_ : added_).Add(std::string(text), rules),
                     absl::StrCat("added_tokens: the token with the id ", token.id)));
      }
    }
    return absl::OkStatus();
  }

  // Puts every token into the table that the merges make of its piece, or every token of the
  // vocabulary if the files say so.
  absl::Status FindWholeWords(const BpeFiles& files) {
    words_.Reserve(files.ids.size());
    std::vector<int32_t> ids;
    for (const auto& [text, id] : files.ids) {
      const std::optional<std::string> piece = first_->PieceOf(text);
      if (!piece || piece->empty() || files.added_texts.count(text) > 0) continue;
      if (!files.whole_words_first) {
        if (piece->size() > kLongestWord) continue;
        ids.clear();
        if (!first_->Append(*piece, &ids).ok()) continue;
        NSA_RETURN_IF_ERROR(merges_.Apply(&ids, nullptr));
        if (ids.size() != 1 || ids[0] != id) continue;
      }
      words_.Add(*piece, id);
      longest_word_ = std::max(longest_word_, piece->size());
    }
    return absl::OkStatus();
  }

  // Appends the tokens of a word, which is divided if it is too long.
  absl::Status Merge(std::string_view word, std::vector<int32_t>* ids, std::vector<Token>* tokens,
                     ReadProgress* progress) const {
    if (word.size() <= longest_word_) {
      if (const int32_t whole = words_.Find(word); whole >= 0) {
        tokens->push_back(whole);
        if (progress != nullptr) progress->bytes += std::ssize(word);
        return absl::OkStatus();
      }
    }
    while (!word.empty()) {
      const std::string_view part = word.substr(0, BpeMerges::kLongestPiece);
      word.remove_prefix(part.size());
      ids->clear();
      NSA_RETURN_IF_ERROR(first_->Append(part, ids));
      // Apply() counts tokens.
      if (progress != nullptr) progress->bytes += std::ssize(part) - std::ssize(*ids);
      NSA_RETURN_IF_ERROR(merges_.Apply(ids, progress));
      tokens->insert(tokens->end(), ids->begin(), ids->end());
    }
    return absl::OkStatus();
  }

  Normalizer normalizer_;
  SpaceMarks spaces_ = SpaceMarks::kNone;  // of what is between added tokens
  std::unique_ptr<const FirstTokens> first_;
  std::vector<std::string> bytes_of_;                 // by id
  std::unordered_map<std::string, int32_t> spelled_;  // added tokens
  BpeMerges merges_;
  WordTable words_;
  size_t longest_word_ = 0;
  int32_t separator_ = 0;
  AddedTokens added_;             // looked for in the text as it is
  AddedTokens added_normalized_;  // looked for in the normalized text between those
  std::vector<Splitter> splitters_;
};

// Added tokens are cut out of the text, what is between them is normalized, further added tokens
// are cut out of that, and the rest is divided into pieces, and these into words.
class Bpe::EncodingOfText final : public TextTokenizer::Encoding {
 public:
  EncodingOfText(const Bpe& bpe, std::string_view text, TextPlace place)
      : bpe_(bpe), place_(place), as_it_is_(bpe.added_, text), pieces_(bpe.splitters_) {}

  bool done() const override {
    return piece_.empty() && pieces_.done() && normalized_.done() && as_it_is_.done();
  }

  absl::Status Next(size_t bytes, std::vector<Token>* tokens, ReadProgress* progress) override {
    size_t taken = 0;
    size_t reported = 0;
    while (taken < bytes && !done()) {
      NSA_ASSIGN_OR_RETURN(const size_t more, NextWord(tokens, progress));
      taken += more;
      if (progress == nullptr || taken - reported < kReportBytes) continue;
      if (progress->cancelled) return EncodingCancelled();
      reported = taken;
    }
    return absl::OkStatus();
  }

 private:
  // Encodes a word or an added token, if one is at hand, or else prepares the next stretch of
  // text. Returns how many bytes are encoded.
  absl::StatusOr<size_t> NextWord(std::vector<Token>* tokens, ReadProgress* progress) {
    if (piece_.empty() && !pieces_.done()) NSA_RETURN_IF_ERROR(pieces_.Next(&piece_));
    if (!piece_.empty()) {
      const std::string_view word = piece_.substr(0, bpe_.first_->WordEnd(piece_));
      piece_.remove_prefix(word.size());
      NSA_RETURN_IF_ERROR(bpe_.Merge(word, &ids_, tokens, progress));
      return word.size();
    }
    const bool within = !normalized_.done();
    const AddedTokens::Stretch stretch = within ? normalized_.Next() : as_it_is_.Next();
    if (stretch.token != AddedTokens::kNone) {
      tokens->push_back(stretch.token);
      if (progress != nullptr) progress->bytes += std::ssize(stretch.text);
      place_ = TextPlace::kBehind;
      return stretch.text.size();
    }
    if (within) {
      MarkAndStart(stretch.text, progress);
    } else {
      NSA_RETURN_IF_ERROR(Normalize(stretch.text, progress));
    }
    return 0;
  }

  absl::Status Normalize(std::string_view text, ReadProgress* progress) {
    NSA_ASSIGN_OR_RETURN(const std::string_view normalized,
                         bpe_.normalizer_.Normalize(text, place_, &normalized_text_));
    Count(text, normalized, progress);
    normalized_ = AddedTokens::Walk(bpe_.added_normalized_, normalized);
    return absl::OkStatus();
  }

  // Begins to divide what is between two added tokens.
  void MarkAndStart(std::string_view text, ReadProgress* progress) {
    std::string_view marked = text;
    if (bpe_.spaces_ != SpaceMarks::kNone) {
      marked = MarkSpaces(text, PrefixOf(bpe_.spaces_, place_), &marked_text_);
      Count(text, marked, progress);
    }
    pieces_.Start(marked);
  }

  // What is encoded counts as what was read.
  static void Count(std::string_view read, std::string_view encoded, ReadProgress* progress) {
    if (progress != nullptr) progress->bytes += std::ssize(read) - std::ssize(encoded);
  }

  const Bpe& bpe_;
  TextPlace place_;  // of the next stretch
  AddedTokens::Walk as_it_is_;
  std::string normalized_text_;  // if it is another one
  AddedTokens::Walk normalized_;
  std::string marked_text_;  // of the stretch that is divided, if it is another one
  Pieces pieces_;
  std::string_view piece_;  // what is left of it
  std::vector<int32_t> ids_;
};

std::unique_ptr<TextTokenizer::Encoding> Bpe::Begin(std::string_view text, TextPlace place) const {
  return std::make_unique<EncodingOfText>(*this, text, place);
}

absl::StatusOr<BpeFiles> Read(v1::Tokenizer tokenizer,
                              const std::vector<std::filesystem::path>& files) {
  if (tokenizer == v1::TOKENIZER_BPE) return ReadTokenizerJson(files[0], BpeKind::kAny);
  if (files.size() == 1) return ReadTokenizerJson(files[0], BpeKind::kGpt2);
  return ReadGpt2Files(files[0].parent_path());
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextTokenizer>> LoadBpe(v1::Tokenizer tokenizer,
                                                       const std::filesystem::path& path) {
  const std::vector<std::filesystem::path> files = TokenizerFilesOf(tokenizer, path);
  NSA_ASSIGN_OR_RETURN(const BpeFiles read, Read(tokenizer, files));
  auto loaded = std::make_unique<Bpe>();
  NSA_RETURN_IF_ERROR(Annotate(loaded->Load(read), files.back().string()));
  return loaded;
}

}  // namespace nsa::train
