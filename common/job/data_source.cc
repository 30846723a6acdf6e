#include "common/job/data_source.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/job/enum_words.h"
#include "common/job/scalar.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

absl::StatusOr<std::string> TextOfJsonLine(std::string_view line) {
  nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("not valid JSON");
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const auto text = json.find("text");
  if (text == json.end()) return absl::InvalidArgumentError("no field 'text'");
  if (!text->is_string()) return absl::InvalidArgumentError("the field 'text' is not a string");
  return std::move(text->get_ref<std::string&>());
}

constexpr std::string_view kNotText[] = {".gz", ".zst", ".jsonl", ".ndjson", ".bin", ".npy"};
constexpr std::string_view kNotJsonLines[] = {".bin", ".npy"};
constexpr std::string_view kNotTokens[] = {".gz", ".zst", ".jsonl", ".ndjson", ".txt"};

constexpr DataSourceInfo kSources[] = {
    {v1::DATA_SOURCE_TEXT, DocumentFormat::kText, kNotText, nullptr, ""},
    {v1::DATA_SOURCE_JSONL, DocumentFormat::kLines, kNotJsonLines, TextOfJsonLine,
     R"(a JSON object with a string field 'text', in UTF-8)"},
    {v1::DATA_SOURCE_TOKENS, DocumentFormat::kTokens, kNotTokens, nullptr, ""},
};
constexpr DataSourceInfo kGenerated = {
    v1::DATA_SOURCE_UNSPECIFIED, DocumentFormat::kNone, {}, nullptr, ""};

}  // namespace

const DataSourceInfo& DataSourceInfoOf(v1::DataSource source) {
  const auto* row = std::find_if(std::begin(kSources), std::end(kSources),
                                 [&](const DataSourceInfo& info) { return info.source == source; });
  return row != std::end(kSources) ? *row : kGenerated;
}

v1::DataSource TextSourceOf(std::string_view path) {
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (path.ends_with(ending)) path.remove_suffix(ending.size());
  }
  const bool lines = path.ends_with(".jsonl") || path.ends_with(".ndjson");
  return lines ? v1::DATA_SOURCE_JSONL : v1::DATA_SOURCE_TEXT;
}

absl::StatusOr<int32_t> ParseSeparator(std::string_view word) {
  if (word == "none") return kNoSeparator;
  const absl::StatusOr<int64_t> token = ParseInteger(word, 0, 65535);
  if (token.ok()) return static_cast<int32_t>(*token);
  return absl::InvalidArgumentError(
      absl::StrCat("data.separator: '", absl::string_view(word.data(), word.size()),
                   "' (a token from 0 to 65535, or none); GPT-2's is 50256"));
}

std::string SourcesWithFiles() {
  std::vector<std::string> words;
  for (const DataSourceInfo& info : kSources) {
    words.push_back(EnumWord(*v1::DataSource_descriptor()->FindValueByNumber(info.source)));
  }
  const std::string last = words.back();
  words.pop_back();
  return absl::StrCat(absl::StrJoin(words, ", "), " or ", last);
}

}  // namespace nsa
