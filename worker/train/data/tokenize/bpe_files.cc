#include "worker/train/data/tokenize/bpe_files.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/byte_characters.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

constexpr char kEndOfText[] = "<|endoftext|>";

// A value of a file in an error: short, on one line, without what steers a terminal.
std::string Shown(const std::string& text) {
  constexpr size_t kLongest = 100;
  return CleanLine(std::string_view(text).substr(0, kLongest)) +
         (text.size() > kLongest ? "…" : "");
}

std::string Shown(const nlohmann::json& json) {
  return Shown(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::StatusOr<std::string> ReadText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be opened"));
  std::error_code error;
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error || bytes > limits::kVocabularyBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes (at most %d)", path.string(), error ? -1 : bytes, limits::kVocabularyBytes));
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<nlohmann::json> ReadObject(const fs::path& path) {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a JSON object"));
}

// Collects a vocabulary, in which each id from 0 on stands once.
class Vocabulary {
 public:
  Vocabulary(const fs::path& path, BpeFiles* files) : path_(path), files_(*files) {}

  absl::Status Add(const std::string& text, const nlohmann::json& id) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMostTokens) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: token %s has id %s (0 … %d, each once)", path_.string(), Shown(text),
                          Shown(id), kMostTokens - 1));
    }
    const auto number = id.get<int32_t>();
    const auto [at, added] = files_.ids.emplace(text, number);
    if (!added) return at->second == number ? absl::OkStatus() : Twice(text);
    used_.resize(std::max(used_.size(), static_cast<size_t>(number) + 1));
    if (used_[static_cast<size_t>(number)]) return Twice(text);
    used_[static_cast<size_t>(number)] = true;
    return absl::OkStatus();
  }

  // Whether no id and no byte is missing.
  absl::Status Check() const {
    const std::array<std::string, 256> characters = BytesAsCharacters();
    for (int byte = 0; byte < 256; ++byte) {
      if (files_.ids.count(characters[byte]) > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: no token for byte %d", path_.string(), byte));
    }
    if (used_.size() == files_.ids.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d tokens with ids up to %d (each id from 0 on once)", path_.string(),
                        files_.ids.size(), used_.size() - 1));
  }

 private:
  absl::Status Twice(const std::string& text) const {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: token %s: its id or its text stands twice (each once)", path_.string(), Shown(text)));
  }

  const fs::path path_;
  BpeFiles& files_;
  std::vector<bool> used_;
};

absl::Status AddVocabulary(const fs::path& path, const nlohmann::json& tokens,
                           Vocabulary* vocabulary) {
  if (tokens.size() > kMostTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d tokens (at most %d); use a tokenizer with fewer", path.string(),
                        tokens.size(), kMostTokens));
  }
  for (const auto& [text, id] : tokens.items()) {
    NSA_RETURN_IF_ERROR(vocabulary->Add(text, id));
  }
  return absl::OkStatus();
}

absl::Status CheckMerge(const BpeFiles& files, const std::string& left, const std::string& right,
                        const std::string& place) {
  if (files.ids.count(left) > 0 && files.ids.count(right) > 0 &&
      files.ids.count(left + right) > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: '%s' (two tokens that are in the vocabulary, as is their concatenation)",
                      place, Shown(absl::StrCat(left, " ", right))));
}

// The parts of a tokenizer.json.
class TokenizerJson {
 public:
  TokenizerJson(fs::path path, nlohmann::json json)
      : path_(std::move(path)), json_(std::move(json)) {}

  absl::StatusOr<BpeFiles> Read() {
    NSA_RETURN_IF_ERROR(CheckModel());
    NSA_RETURN_IF_ERROR(CheckSplitting());
    NSA_RETURN_IF_ERROR(ReadTokens());
    NSA_RETURN_IF_ERROR(ReadMerges());
    for (const char* separator : {kEndOfText, "<|end_of_text|>"}) {
      if (files_.ids.count(separator) == 0) continue;
      files_.separator = separator;
      return std::move(files_);
    }
    return absl::InvalidArgumentError(absl::StrCat(path_.string(), ": no token ", kEndOfText,
                                                   " or <|end_of_text|> (one begins a document)"));
  }

 private:
  absl::Status Refuse(std::string_view what, const nlohmann::json& value,
                      std::string_view wanted) const {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: %s (%s); such a tokenizer is not supported: prepare token files with its own "
        "program",
        path_.string(), what, Shown(value), wanted));
  }

  // A part of an object; null if it is not there.
  static const nlohmann::json& Part(const nlohmann::json& object, const char* name) {
    static const nlohmann::json none;
    if (!object.is_object()) return none;
    const auto found = object.find(name);
    return found == object.end() ? none : *found;
  }

  static bool IsOff(const nlohmann::json& value) {
    return value.is_null() || value == false || value == "" || value == 0.0;
  }

  absl::Status CheckModel() const {
    const nlohmann::json& model = Part(json_, "model");
    if (Part(model, "type") != "BPE") return Refuse("model.type", Part(model, "type"), "BPE");
    for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                             "byte_fallback", "ignore_merges"}) {
      const nlohmann::json& value = Part(model, name);
      if (!IsOff(value)) return Refuse(absl::StrCat("model.", name), value, "none");
    }
    return absl::OkStatus();
  }

  absl::Status CheckSplitting() const {
    if (!Part(json_, "normalizer").is_null()) {
      return Refuse("normalizer", Part(json_, "normalizer"), "none");
    }
    const nlohmann::json& splits = Part(json_, "pre_tokenizer");
    const nlohmann::json& prefix = Part(splits, "add_prefix_space");
    const nlohmann::json& regex = Part(splits, "use_regex");
    const bool gpt2 = regex.is_null() || regex == true;
    if (Part(splits, "type") == "ByteLevel" && prefix == false && gpt2) return absl::OkStatus();
    return Refuse("pre_tokenizer", splits,
                  "ByteLevel with GPT-2's pattern and add_prefix_space: false");
  }

  absl::Status ReadTokens() {
    Vocabulary vocabulary(path_, &files_);
    const nlohmann::json& tokens = Part(Part(json_, "model"), "vocab");
    if (!tokens.is_object()) return Refuse("model.vocab", tokens, "an object");
    NSA_RETURN_IF_ERROR(AddVocabulary(path_, tokens, &vocabulary));
    const nlohmann::json& all_added = Part(json_, "added_tokens");
    for (const nlohmann::json& added : all_added) {
      const nlohmann::json& text = Part(added, "content");
      if (Part(added, "special") != true || !text.is_string()) {
        return Refuse("added_tokens", added, "special tokens only");
      }
      NSA_RETURN_IF_ERROR(vocabulary.Add(text.get<std::string>(), Part(added, "id")));
    }
    return vocabulary.Check();
  }

  absl::Status ReadMerges() {
    const nlohmann::json& merges = Part(Part(json_, "model"), "merges");
    if (!merges.is_array()) return Refuse("model.merges", merges, "a list");
    for (const nlohmann::json& merge : merges) {
      const std::string place =
          absl::StrFormat("%s: model.merges[%d]", path_.string(), files_.merges.size());
      std::vector<std::string> parts;
      if (merge.is_string()) parts = absl::StrSplit(merge.get<std::string>(), ' ');
      for (size_t i = 0; merge.is_array() && i < merge.size(); ++i) {
        if (merge[i].is_string()) parts.push_back(merge[i].get<std::string>());
      }
      if (parts.size() != 2) return Refuse(place, merge, "two tokens");
      NSA_RETURN_IF_ERROR(CheckMerge(files_, parts[0], parts[1], place));
      files_.merges.emplace_back(std::move(parts[0]), std::move(parts[1]));
    }
    return absl::OkStatus();
  }

  const fs::path path_;
  const nlohmann::json json_;
  BpeFiles files_;
};

}  // namespace

absl::StatusOr<BpeFiles> ReadGpt2Files(const fs::path& folder) {
  BpeFiles files;
  const fs::path vocab = folder / "vocab.json";
  NSA_ASSIGN_OR_RETURN(const nlohmann::json tokens, ReadObject(vocab));
  Vocabulary vocabulary(vocab, &files);
  NSA_RETURN_IF_ERROR(AddVocabulary(vocab, tokens, &vocabulary));
  NSA_RETURN_IF_ERROR(vocabulary.Check());
  files.separator = kEndOfText;
  if (files.ids.count(kEndOfText) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(vocab.string(), ": no ", kEndOfText));
  }
  const fs::path merges = folder / "merges.txt";
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadText(merges));
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty() || absl::StartsWith(line, "#version")) continue;
    std::vector<std::string> parts = absl::StrSplit(line, ' ');
    parts.resize(2);
    if (std::count(line.begin(), line.end(), ' ') != 1) parts = {std::string(line), ""};
    NSA_RETURN_IF_ERROR(
        CheckMerge(files, parts[0], parts[1], absl::StrCat(merges.string(), ":", number)));
    files.merges.emplace_back(std::move(parts[0]), std::move(parts[1]));
  }
  return files;
}

absl::StatusOr<BpeFiles> ReadTokenizerJson(const fs::path& path) {
  NSA_ASSIGN_OR_RETURN(nlohmann::json json, ReadObject(path));
  return TokenizerJson(path, std::move(json)).Read();
}

}  // namespace nsa::train
