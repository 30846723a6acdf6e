#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/job/data/tokenizer_files.h"
#include "worker/train/data/tokenize/bpe_files.h"
#include "worker/train/data/tokenize/split_pattern.h"
#include "worker/train/data/tokenize/vocabulary.h"

namespace nsa::train {
namespace {

using Json = nlohmann::json;

// A part of an object; null if it is not there.
const Json& Part(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

bool IsOff(const Json& value) {
  return value.is_null() || value == false || value == "" || value == 0.0;
}

// ByteLevel, which writes bytes as characters; with GPT-2's pattern if `own_pattern`.
bool IsByteLevel(const Json& part, bool own_pattern) {
  const Json& regex = Part(part, "use_regex");
  return Part(part, "type") == "ByteLevel" && Part(part, "add_prefix_space") == false &&
         (regex == own_pattern || (regex.is_null() && own_pattern));
}

// The parts of a tokenizer.json.
class TokenizerJson {
 public:
  TokenizerJson(std::filesystem::path path, Json json, BpeKind kind)
      : path_(std::move(path)), json_(std::move(json)), kind_(kind) {}

  absl::StatusOr<BpeFiles> Read() {
    NSA_RETURN_IF_ERROR(CheckModel());
    if (!Part(json_, "normalizer").is_null()) {
      return Refuse("normalizer", Part(json_, "normalizer"), "none");
    }
    NSA_RETURN_IF_ERROR(any() ? ReadSplitting() : CheckSplitting());
    files_.ascii_split = AsciiSplitOf(split_);
    NSA_RETURN_IF_ERROR(ReadTokens());
    NSA_RETURN_IF_ERROR(ReadMerges());
    NSA_RETURN_IF_ERROR(ChooseSeparator());
    return std::move(files_);
  }

 private:
  bool any() const { return kind_ == BpeKind::kAny; }

  absl::Status Refuse(std::string_view what, const Json& value, std::string_view wanted) const {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: %s (%s); such a tokenizer is not supported: %s", path_.string(), what,
        ShownValue(value), wanted,
        any() ? "prepare token files with its own program"
              : "try data.tokenizer: bpe, or prepare token files with its own program"));
  }

  absl::Status CheckModel() {
    const Json& model = Part(json_, "model");
    if (Part(model, "type") != "BPE") return Refuse("model.type", Part(model, "type"), "BPE");
    for (const char* name :
         {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
      if (!IsOff(Part(model, name))) {
        return Refuse(absl::StrCat("model.", name), Part(model, name), "none");
      }
    }
    const Json& whole_words = Part(model, "ignore_merges");
    files_.whole_words_first = whole_words == true;
    if (IsOff(whole_words) || (any() && whole_words == true)) return absl::OkStatus();
    return Refuse("model.ignore_merges", whole_words, any() ? "true or false" : "none");
  }

  absl::Status CheckSplitting() {
    split_ = kGpt2Pattern;
    if (IsByteLevel(Part(json_, "pre_tokenizer"), true)) return absl::OkStatus();
    return Refuse("pre_tokenizer", Part(json_, "pre_tokenizer"),
                  "ByteLevel with GPT-2's pattern and add_prefix_space: false");
  }

  // ByteLevel, or a sequence of Split and ByteLevel without a pattern.
  absl::Status ReadSplitting() {
    const Json& part = Part(json_, "pre_tokenizer");
    const Json& sequence = Part(part, "pretokenizers");
    if (IsByteLevel(part, false)) {
      files_.split.clear();
      return absl::OkStatus();
    }
    if (IsByteLevel(part, true)) return SetPattern(std::string(kGpt2Pattern));
    const bool pair = Part(part, "type") == "Sequence" && sequence.is_array() &&
                      sequence.size() == 2 && IsByteLevel(sequence[1], false);
    if (pair && Part(sequence[0], "type") == "Split") return ReadSplit(sequence[0]);
    return Refuse("pre_tokenizer", part,
                  "ByteLevel with add_prefix_space: false, or a Sequence of Split and such a "
                  "ByteLevel with use_regex: false");
  }

  absl::Status ReadSplit(const Json& split) {
    const Json& pattern = Part(Part(split, "pattern"), "Regex");
    if (!pattern.is_string()) {
      return Refuse("pre_tokenizer: pattern", Part(split, "pattern"), "a Regex");
    }
    const auto text = pattern.get<std::string>();
    const Json& invert = Part(split, "invert");
    const bool isolated = Part(split, "behavior") == "Isolated" && IsOff(invert);
    // Removes what is not matched, which is nothing with a pattern that matches every text.
    const bool removed = Part(split, "behavior") == "Removed" && invert == true;
    if (!isolated && !(removed && AsciiSplitOf(text) != nullptr)) {
      return Refuse("pre_tokenizer", split, "Split with behavior: Isolated and invert: false");
    }
    return SetPattern(text);
  }

  absl::Status SetPattern(const std::string& text) {
    split_ = text;
    absl::StatusOr<std::string> pattern = Pcre2Pattern(text);
    if (pattern.ok()) {
      files_.split = *std::move(pattern);
      return absl::OkStatus();
    }
    return Refuse("pre_tokenizer: pattern", text, std::string(pattern.status().message()));
  }

  absl::Status ReadTokens() {
    Vocabulary vocabulary(path_, &files_);
    const Json& tokens = Part(Part(json_, "model"), "vocab");
    if (!tokens.is_object()) return Refuse("model.vocab", tokens, "an object");
    NSA_RETURN_IF_ERROR(vocabulary.AddAll(tokens));
    for (const Json& added : Part(json_, "added_tokens")) {
      const Json& text = Part(added, "content");
      if (Part(added, "special") != true || !text.is_string()) {
        return Refuse("added_tokens", added, "special tokens only");
      }
      NSA_RETURN_IF_ERROR(vocabulary.Add(text.get<std::string>(), Part(added, "id")));
      files_.added.insert(text.get<std::string>());
    }
    return vocabulary.Finish(/*gaps=*/any());
  }

  absl::Status ReadMerges() {
    const Json& merges = Part(Part(json_, "model"), "merges");
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
      NSA_RETURN_IF_ERROR(AddMerge(std::move(parts[0]), std::move(parts[1]), place, &files_));
    }
    return absl::OkStatus();
  }

  absl::Status ChooseSeparator() {
    for (const SeparatorName& name : kSeparatorNames) {
      const std::string text(name.text);
      if (files_.added.count(text) == 0 && !(name.plain && files_.ids.count(text) > 0)) continue;
      files_.separator = text;
      files_.added.insert(text);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(path_.string(), ": no token ", SeparatorWords(), " (one begins a document)"));
  }

  const std::filesystem::path path_;
  const Json json_;
  const BpeKind kind_;
  std::string split_;  // the pattern as it is in the file; empty: none
  BpeFiles files_;
};

}  // namespace

absl::StatusOr<BpeFiles> ReadTokenizerJson(const std::filesystem::path& path, BpeKind kind) {
  NSA_ASSIGN_OR_RETURN(Json json, ReadTokenizerObject(path));
  return TokenizerJson(path, std::move(json), kind).Read();
}

}  // namespace nsa::train
