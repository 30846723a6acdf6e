#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/job/data/tokenizer_files.h"
#include "worker/train/data/tokenize/bpe_files.h"
#include "worker/train/data/tokenize/byte_fallback_json.h"
#include "worker/train/data/tokenize/pre_tokenizer_json.h"
#include "worker/train/data/tokenize/vocabulary.h"

namespace nsa::train {
namespace {

using Json = nlohmann::json;

// The parts of a tokenizer.json.
class TokenizerJson {
 public:
  TokenizerJson(std::filesystem::path path, Json json, BpeKind kind)
      : path_(std::move(path)), json_(std::move(json)), kind_(kind) {}

  absl::StatusOr<BpeFiles> Read() {
    NSA_RETURN_IF_ERROR(CheckModel());
    if (files_.byte_fallback) {
      NSA_RETURN_IF_ERROR(ReadByteFallback(path_, json_, &files_));
    } else {
      NSA_RETURN_IF_ERROR(ReadNormalizer());
      NSA_RETURN_IF_ERROR(ReadSplitting());
    }
    NSA_RETURN_IF_ERROR(ReadTokens());
    NSA_RETURN_IF_ERROR(ReadMerges());
    NSA_RETURN_IF_ERROR(ChooseSeparator());
    return std::move(files_);
  }

 private:
  bool any() const { return kind_ == BpeKind::kAny; }

  absl::Status Refuse(std::string_view what, const Json& value, std::string_view wanted) const {
    if (any()) return Unsupported(path_, what, value, wanted);
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: %s (%s); such a tokenizer is not supported: try data.tokenizer: bpe, or prepare "
        "token files with its own program",
        path_.string(), what, ShownValue(value), wanted));
  }

  absl::Status CheckModel() {
    const Json& model = PartOf(json_, "model");
    if (PartOf(model, "type") != "BPE") return Refuse("model.type", PartOf(model, "type"), "BPE");
    for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!IsOff(PartOf(model, name))) {
        return Refuse(absl::StrCat("model.", name), PartOf(model, name), "none");
      }
    }
    const Json& fallback = PartOf(model, "byte_fallback");
    files_.byte_fallback = fallback == true;
    if (!IsOff(fallback) && !(any() && fallback == true)) {
      return Refuse("model.byte_fallback", fallback, any() ? "true or false" : "none");
    }
    const Json& whole_words = PartOf(model, "ignore_merges");
    const bool may = any() && !files_.byte_fallback;
    files_.whole_words_first = whole_words == true;
    if (IsOff(whole_words) || (may && whole_words == true)) return absl::OkStatus();
    return Refuse("model.ignore_merges", whole_words, may ? "true or false" : "none");
  }

  // NFC, by itself or in a Sequence, or nothing.
  absl::Status ReadNormalizer() {
    for (const Json& part : PartsOf(PartOf(json_, "normalizer"), "normalizers")) {
      if (!any() || PartOf(part, "type") != "NFC") {
        return Refuse("normalizer", part, any() ? "NFC or none" : "none");
      }
      files_.nfc = true;
    }
    return absl::OkStatus();
  }

  absl::Status ReadSplitting() {
    const Json& part = PartOf(json_, "pre_tokenizer");
    if (any()) {
      NSA_ASSIGN_OR_RETURN(files_.split, ReadPreTokenizer(path_, part));
      return absl::OkStatus();
    }
    files_.split = {KnownSplit(kGpt2Pattern)};
    if (IsByteLevel(part, true)) return absl::OkStatus();
    return Refuse("pre_tokenizer", part,
                  "ByteLevel with GPT-2's pattern and add_prefix_space: false");
  }

  absl::Status ReadTokens() {
    Vocabulary vocabulary(path_, &files_);
    const Json& tokens = PartOf(PartOf(json_, "model"), "vocab");
    if (!tokens.is_object()) return Refuse("model.vocab", tokens, "an object");
    NSA_RETURN_IF_ERROR(vocabulary.AddAll(tokens));
    for (const Json& added : PartOf(json_, "added_tokens")) {
      NSA_RETURN_IF_ERROR(ReadAddedToken(added, &vocabulary));
    }
    return vocabulary.Finish(/*gaps=*/any());
  }

  absl::Status ReadAddedToken(const Json& added, Vocabulary* vocabulary) {
    const Json& text = PartOf(added, "content");
    const Json& normalized = PartOf(added, "normalized");
    const bool special = PartOf(added, "special") == true;
    if (!text.is_string() || !(special || any())) {
      return Refuse("added_tokens", added, any() ? "a text as content" : "special tokens only");
    }
    for (const char* name : {"lstrip", "rstrip", "single_word"}) {
      if (IsOff(PartOf(added, name)) || PartOf(added, name) == true) continue;
      return Refuse(absl::StrCat("added_tokens: ", name), added, "true or false");
    }
    if (!special && !normalized.is_boolean()) {
      return Refuse("added_tokens: normalized", added, "true or false");
    }
    NSA_RETURN_IF_ERROR(vocabulary->Add(text.get<std::string>(), PartOf(added, "id")));
    files_.added_texts.insert(text.get<std::string>());
    files_.added.push_back({.text = text.get<std::string>(),
                            .id = PartOf(added, "id").get<int32_t>(),
                            .special = special,
                            .normalized = normalized == true,
                            .lstrip = PartOf(added, "lstrip") == true,
                            .rstrip = PartOf(added, "rstrip") == true,
                            .single_word = PartOf(added, "single_word") == true});
    return absl::OkStatus();
  }

  absl::Status ReadMerges() {
    const Json& merges = PartOf(PartOf(json_, "model"), "merges");
    if (!merges.is_array()) return Refuse("model.merges", merges, "a list");
    files_.merges.reserve(merges.size());
    for (const Json& merge : merges) {
      const std::string place =
          absl::StrFormat("%s: model.merges[%d]", path_.string(), files_.merges.size());
      std::vector<std::string> parts;
      if (merge.is_string()) parts = absl::StrSplit(merge.get<std::string>(), ' ');
      for (size_t i = 0; merge.is_array() && i < merge.size(); ++i) {
        if (merge[i].is_string()) parts.push_back(merge[i].get<std::string>());
      }
      if (parts.size() != 2) return Refuse(place, merge, "two tokens");
      if (files_.byte_fallback && (ByteOfToken(parts[0]) || ByteOfToken(parts[1]))) {
        return Refuse(place, merge, "none of the token of a byte");
      }
      NSA_RETURN_IF_ERROR(AddMerge(std::move(parts[0]), std::move(parts[1]), place, &files_));
    }
    return absl::OkStatus();
  }

  bool IsSpecial(const std::string& text) const {
    return std::any_of(files_.added.begin(), files_.added.end(), [&](const AddedToken& token) {
      return token.special && token.text == text;
    });
  }

  absl::Status ChooseSeparator() {
    if (const std::string begin = files_.byte_fallback ? BeginOfTexts(json_) : std::string();
        IsSpecial(begin)) {
      files_.separator = begin;
      return absl::OkStatus();
    }
    for (const SeparatorName& name : kSeparatorNames) {
      const std::string text(name.text);
      if (!IsSpecial(text) && !(name.plain && files_.ids.count(text) > 0)) continue;
      files_.separator = text;
      files_.added_texts.insert(text);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(path_.string(), ": no token ", SeparatorWords(), " (one begins a document)"));
  }

  const std::filesystem::path path_;
  const Json json_;
  const BpeKind kind_;
  BpeFiles files_;
};

}  // namespace

absl::StatusOr<BpeFiles> ReadTokenizerJson(const std::filesystem::path& path, BpeKind kind) {
  NSA_ASSIGN_OR_RETURN(Json json, ReadTokenizerObject(path));
  return TokenizerJson(path, std::move(json), kind).Read();
}

}  // namespace nsa::train
