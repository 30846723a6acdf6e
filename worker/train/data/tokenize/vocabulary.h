// What the readers of tokenizer files share: their texts, and the vocabulary that they collect.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/tokenize/bpe_files.h"

namespace nsa::train {

// A value of a file in an error: short, on one line, without what steers a terminal.
std::string ShownValue(const std::string& text);
std::string ShownValue(const nlohmann::json& json);

// Refuses a part of a file: "FILE: WHAT: VALUE (WANTED); such a tokenizer is not supported: …".
absl::Status Unsupported(const std::filesystem::path& path, std::string_view what,
                         const nlohmann::json& value, std::string_view wanted);

// A part of an object; null if it is not there.
const nlohmann::json& PartOf(const nlohmann::json& object, const char* name);

// Whether a part is not there, or says that nothing is done: null, false, "" or 0.
bool IsOff(const nlohmann::json& value);

// A file of a tokenizer, of at most limits::kVocabularyBytes, without a byte-order mark. The errors
// of ReadJobFile(), or InvalidArgument, naming it, also for a pointer of Git LFS or a web page in
// its place.
absl::StatusOr<std::string> ReadTokenizerText(const std::filesystem::path& path);

// The same, if it is a JSON object.
absl::StatusOr<nlohmann::json> ReadTokenizerObject(const std::filesystem::path& path);

// The token of a byte in a vocabulary with byte fallback, "<0x0A>"; and the byte of such a token.
std::string ByteToken(unsigned char byte);
std::optional<unsigned char> ByteOfToken(std::string_view token);

// Collects the vocabulary of a file: tokens below kMostTokens, no text and no id twice.
class Vocabulary {
 public:
  Vocabulary(std::filesystem::path path, BpeFiles* files)
      : path_(std::move(path)), files_(*files) {}

  // Adds tokens of a JSON object, text to id. All errors are InvalidArgument and name the file.
  absl::Status AddAll(const nlohmann::json& tokens);

  // Adds a token. One that is there with the same id may be added again.
  absl::Status Add(const std::string& text, const nlohmann::json& id);

  // Whether every byte has a token and every id from 0 on; with `gaps`, ids may be left out, and so
  // may bytes that no UTF-8 has. Sets BpeFiles.size.
  absl::Status Finish(bool gaps);

 private:
  absl::Status Twice(const std::string& text) const;

  const std::filesystem::path path_;
  BpeFiles& files_;
  std::vector<bool> used_;
};

// Adds a merge. InvalidArgument, beginning with `place`, if the tokens or their concatenation are
// not in the vocabulary.
absl::Status AddMerge(std::string left, std::string right, const std::string& place,
                      BpeFiles* files);

}  // namespace nsa::train
