#include "common/job/data_source.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/job/data/url.h"
#include "common/job/enum_words.h"
#include "common/job/scalar.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

// The names of an object's fields, for messages: "id, meta, url".
std::string FieldsOf(const nlohmann::json& object) {
  constexpr size_t kMost = 20;
  std::vector<std::string> names;
  for (const auto& field : object.items()) {
    if (names.size() == kMost) {
      names.emplace_back("…");
      break;
    }
    names.push_back(CleanLine(CutText(field.key(), 100)));
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

absl::StatusOr<std::string> TextOfJsonLine(std::string_view line, std::string_view text_field) {
  nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("not valid JSON");
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const std::string field(text_field);
  const auto text = json.find(field);
  if (text == json.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no field '", field, "' (fields: ", FieldsOf(json), ")"));
  }
  if (!text->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("the field '", field, "' is not a string"));
  }
  return std::move(text->get_ref<std::string&>());
}

constexpr std::string_view kNotText[] = {".gz",  ".zst", ".jsonl",  ".ndjson",
                                         ".bin", ".npy", ".parquet"};
constexpr std::string_view kNotJsonLines[] = {".bin", ".npy", ".parquet"};
constexpr std::string_view kNotTokens[] = {".gz", ".zst", ".jsonl", ".ndjson", ".txt", ".parquet"};
constexpr std::string_view kNotParquet[] = {".gz",  ".zst", ".jsonl", ".ndjson",
                                            ".txt", ".bin", ".npy"};

constexpr DataSourceInfo kSources[] = {
    {v1::DATA_SOURCE_TEXT, DocumentFormat::kText, kNotText, nullptr, ""},
    {v1::DATA_SOURCE_JSONL, DocumentFormat::kLines, kNotJsonLines, TextOfJsonLine,
     "a JSON object with a string field of the name data.text_field, in UTF-8"},
    {v1::DATA_SOURCE_TOKENS, DocumentFormat::kTokens, kNotTokens, nullptr, ""},
    {v1::DATA_SOURCE_PARQUET, DocumentFormat::kRows, kNotParquet, nullptr, ""},
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
  path = WithoutQuery(path);
  if (path.ends_with(".parquet")) return v1::DATA_SOURCE_PARQUET;
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (path.ends_with(ending)) path.remove_suffix(ending.size());
  }
  const bool lines = path.ends_with(".jsonl") || path.ends_with(".ndjson");
  return lines ? v1::DATA_SOURCE_JSONL : v1::DATA_SOURCE_TEXT;
}

absl::StatusOr<int32_t> ParseSeparator(std::string_view word) {
  if (word == "none") return kNoSeparator;
  const absl::StatusOr<int64_t> token = ParseInteger(word, 0, kMostTokens - 1);
  if (token.ok()) return static_cast<int32_t>(*token);
  return absl::InvalidArgumentError(
      absl::StrCat("data.separator: '", absl::string_view(word.data(), word.size()),
                   "' (must be a token from 0 to 1048575, or none); GPT-2's is 50256"));
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
