#include "worker/train/data/tokenize/vocabulary.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/characters/byte_characters.h"
#include "common/base/characters/utf8.h"
#include "common/base/clean_text.h"
#include "common/base/job_file.h"
#include "common/base/json_shape.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/data/file_kind.h"

namespace nsa::train {

namespace fs = std::filesystem;

std::string ShownValue(const std::string& text) {
  constexpr size_t kLongest = 100;
  return CleanLine(CutText(text, kLongest));
}

std::string ShownValue(const nlohmann::json& json) {
  return ShownValue(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::Status Unsupported(const fs::path& path, std::string_view what, const nlohmann::json& value,
                         std::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s: %s (%s); such a tokenizer is not supported: prepare token files with "
      "its own program",
      path.string(), what, ShownValue(value), wanted));
}

const nlohmann::json& PartOf(const nlohmann::json& object, const char* name) {
  static const nlohmann::json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

bool IsOff(const nlohmann::json& value) {
  return value.is_null() || value == false || value == "" || value == 0.0;
}

absl::StatusOr<std::string> ReadTokenizerText(const fs::path& path) {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadJobFile(path, limits::kVocabularyBytes));
  NSA_RETURN_IF_ERROR(CheckIsNoStranger(path.native(), text));
  return std::string(WithoutByteOrderMark(text));
}

absl::StatusOr<nlohmann::json> ReadTokenizerObject(const fs::path& path) {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadTokenizerText(path));
  nlohmann::json json;
  if (IsShallow(text)) json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a JSON object"));
}

std::string ByteToken(unsigned char byte) { return absl::StrFormat("<0x%02X>", byte); }

std::optional<unsigned char> ByteOfToken(std::string_view token) {
  constexpr std::string_view kForm = "<0x00>";
  if (token.size() != kForm.size() || !token.starts_with("<0x") || !token.ends_with('>')) {
    return std::nullopt;
  }
  unsigned char byte = 0;
  const char* const end = token.data() + kForm.size() - 1;
  const auto [at, error] = std::from_chars(token.data() + 3, end, byte, 16);
  if (error != std::errc() || at != end) return std::nullopt;
  return byte;
}

absl::Status Vocabulary::AddAll(const nlohmann::json& tokens) {
  if (tokens.size() > static_cast<size_t>(kMostTokens)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d tokens (at most %d); use a tokenizer with fewer", path_.string(),
                        tokens.size(), kMostTokens));
  }
  files_.ids.reserve(tokens.size());
  for (const auto& [text, id] : tokens.items()) NSA_RETURN_IF_ERROR(Add(text, id));
  return absl::OkStatus();
}

absl::Status Vocabulary::Add(const std::string& text, const nlohmann::json& id) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t{kMostTokens}) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: token %s has id %s (from 0 to %d, unique)", path_.string(),
                        ShownValue(text), ShownValue(id), kMostTokens - 1));
  }
  const auto number = id.get<int32_t>();
  const auto [at, added] = files_.ids.emplace(text, number);
  if (!added) return at->second == number ? absl::OkStatus() : Twice(text);
  used_.resize(std::max(used_.size(), static_cast<size_t>(number) + 1));
  if (used_[static_cast<size_t>(number)]) return Twice(text);
  used_[static_cast<size_t>(number)] = true;
  return absl::OkStatus();
}

// Whether some text of UTF-8 has this byte.
bool IsInUtf8(int byte) { return byte != 0xc0 && byte != 0xc1 && byte < 0xf5; }

absl::Status Vocabulary::Finish(bool gaps) {
  const std::array<std::string, 256> characters = BytesAsCharacters();
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token =
        files_.byte_fallback ? ByteToken(static_cast<unsigned char>(byte)) : characters[byte];
    if (files_.ids.count(token) > 0 || (gaps && !IsInUtf8(byte))) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: no token for byte %d", path_.string(), byte));
  }
  files_.size = static_cast<int32_t>(used_.size());
  if (gaps || used_.size() == files_.ids.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d tokens with ids up to %d (ids must be 0, 1, 2, … without gaps)",
                      path_.string(), files_.ids.size(), used_.size() - 1));
}

absl::Status Vocabulary::Twice(const std::string& text) const {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: token %s: duplicate id or text", path_.string(), ShownValue(text)));
}

absl::Status AddMerge(std::string left, std::string right, const std::string& place,
                      BpeFiles* files) {
  const bool known = files->ids.count(left) > 0 && files->ids.count(right) > 0 &&
                     files->ids.count(left + right) > 0;
  if (!known) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: '%s' (two tokens that are in the vocabulary, as is their concatenation)", place,
        ShownValue(absl::StrCat(left, " ", right))));
  }
  files->merges.emplace_back(std::move(left), std::move(right));
  return absl::OkStatus();
}

}  // namespace nsa::train
