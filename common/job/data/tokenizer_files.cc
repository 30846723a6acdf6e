#include "common/job/data/tokenizer_files.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/job_file.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/data_source.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

using Json = nlohmann::json;

// Follows a tokenizer.json from its beginning to its end.
class FactsReader final : public nlohmann::json_sax<Json> {
 public:
  // Why the file is invalid, if the parser stopped.
  const std::string& fault() const { return fault_; }

  TokenizerFacts Facts() const {
    TokenizerFacts facts{.tokens = tokens_};
    for (const SeparatorName& name : kSeparatorNames) {
      const bool added = added_.count(name.text) > 0;
      const auto& ids = added || !name.plain ? added_ : plain_;
      const auto found = ids.find(name.text);
      if (found == ids.end()) continue;
      facts.end = std::string(name.text);
      facts.end_id = found->second;
      break;
    }
    facts.separator = facts.end;
    facts.separator_id = facts.end_id;
    if (const auto begin = added_.find(begin_); byte_fallback_ && begin != added_.end()) {
      facts.separator = begin->first;
      facts.separator_id = begin->second;
    }
    if (facts.end.empty()) {
      facts.end = facts.separator;
      facts.end_id = facts.separator_id;
    }
    facts.special = added_;
    return facts;
  }

  bool null() override { return true; }
  bool boolean(bool value) override {
    if (InAdded() && Key() == "special") special_ = value;
    if (open_.size() == 2 && open_[0].key == "model" && Key() == "byte_fallback") {
      byte_fallback_ = value;
    }
    return true;
  }
  bool number_integer(number_integer_t value) override { return !IsId() || BadId(value); }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    if (!IsId()) return true;
    if (value >= uint64_t{kMostTokens}) return BadId(value);
    const auto id = static_cast<int32_t>(value);
    tokens_ = std::max(tokens_, id + 1);
    if (InAdded()) {
      id_ = id;
    } else if (IsName(Key())) {
      plain_.emplace(Key(), id);
    }
    return true;
  }
  bool string(string_t& value) override {
    if (InAdded() && Key() == "content") content_ = value;
    if (InFirstOfTemplate() && Key() == "id" && open_[open_.size() - 2].key == "SpecialToken") {
      begin_ = value;
    }
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Enter(false); }
  bool start_array(size_t) override { return Enter(true); }
  bool key(string_t& value) override {
    open_.back().key = value;
    return true;
  }
  bool end_object() override {
    if (InAdded()) {
      if (id_ >= 0 && special_) added_.emplace(content_, id_);
      if (id_ >= 0 && !special_ && IsName(content_)) plain_.emplace(content_, id_);
      content_.clear();
      id_ = -1;
      special_ = false;
    }
    open_.pop_back();
    // The first part of a template ends.
    if (open_.size() > 2 && open_[0].key == "post_processor" && open_.back().array &&
        open_[open_.size() - 2].key == "single") {
      template_begun_ = true;
    }
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception&) override {
    if (fault_.empty()) fault_ = "is not JSON";
    return false;
  }

 private:
  struct Open {
    bool array;
    std::string key;
  };

  bool Enter(bool array) {
    constexpr size_t kDeepest = 64;
    if (open_.size() == kDeepest) {
      fault_ = absl::StrFormat("is nested deeper than %d levels", kDeepest);
      return false;
    }
    open_.push_back({array, ""});
    return true;
  }

  const std::string& Key() const { return open_.back().key; }

  // Within an object of added_tokens.
  bool InAdded() const {
    return open_.size() == 3 && open_[0].key == "added_tokens" && open_[1].array && !open_[2].array;
  }
  // Within model.vocab.
  bool InVocabulary() const {
    return open_.size() == 3 && open_[0].key == "model" && open_[1].key == "vocab" &&
           !open_[2].array;
  }
  bool IsId() const { return InVocabulary() || (InAdded() && Key() == "id"); }

  // Within the object of an object that is the first part of post_processor … single.
  bool InFirstOfTemplate() const {
    const size_t deep = open_.size();
    return !template_begun_ && deep > 4 && open_[0].key == "post_processor" &&
           open_[deep - 3].array && open_[deep - 4].key == "single";
  }

  static bool IsName(std::string_view text) {
    return std::any_of(std::begin(kSeparatorNames), std::end(kSeparatorNames),
                       [&](const SeparatorName& name) { return name.text == text; });
  }

  template <typename Number>
  bool BadId(Number id) {
    fault_ = absl::StrFormat("has a token with the id %d (0 … %d)", id, kMostTokens - 1);
    return false;
  }

  std::vector<Open> open_;  // objects and arrays, the innermost last
  std::string fault_;
  int32_t tokens_ = 0;
  std::map<std::string, int32_t, std::less<>> added_;  // special added tokens
  std::map<std::string, int32_t, std::less<>> plain_;  // of kSeparatorNames, other tokens
  std::string content_;                                // of the added token
  int32_t id_ = -1;
  bool special_ = false;
  bool byte_fallback_ = false;   // of the model
  bool template_begun_ = false;  // the first part of a template of the post_processor was read
  std::string begin_;            // the token that it is, which begins a text
};

}  // namespace

bool HasTokenizerFiles(v1::Tokenizer tokenizer) {
  return tokenizer == v1::TOKENIZER_GPT2 || tokenizer == v1::TOKENIZER_BPE;
}

std::vector<std::filesystem::path> TokenizerFilesOf(v1::Tokenizer tokenizer,
                                                    const std::filesystem::path& path) {
  const std::filesystem::path json = path / "tokenizer.json";
  const std::filesystem::path vocab = path / "vocab.json";
  if (path.extension() == ".json") return {path};
  if (tokenizer == v1::TOKENIZER_BPE) return {json};
  if (JobPathExists(json) && !JobPathExists(vocab)) return {json};
  return {vocab, path / "merges.txt"};
}

std::string TokenizerFileWords(v1::Tokenizer tokenizer) {
  if (tokenizer == v1::TOKENIZER_BPE) return "a tokenizer.json, or a folder with one";
  return "a folder with GPT-2's vocab.json and merges.txt, or a tokenizer.json";
}

std::string SeparatorWords() {
  std::vector<std::string> words;
  for (const SeparatorName& name : kSeparatorNames) words.emplace_back(name.text);
  const std::string last = words.back();
  words.pop_back();
  return absl::StrCat(absl::StrJoin(words, ", "), " or ", last);
}

absl::StatusOr<TokenizerFacts> ReadTokenizerFacts(const std::filesystem::path& path) {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadJobFile(path, limits::kVocabularyBytes));
  FactsReader reader;
  if (!Json::sax_parse(text, &reader)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", reader.fault(),
                                                   " (must be a tokenizer.json of Hugging Face)"));
  }
  TokenizerFacts facts = reader.Facts();
  if (facts.tokens > 0) return facts;
  return absl::InvalidArgumentError(absl::StrCat(
      path.string(), ": no tokens in model.vocab (must be a tokenizer.json of Hugging Face)"));
}

}  // namespace nsa
