#include "common/job/data_source.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/data/url.h"
#include "common/job/enum_words.h"
#include "common/job/scalar.h"

namespace nsa {
namespace {

constexpr std::string_view kNotText[] = {".jsonl", ".ndjson", ".bin", ".npy", ".parquet"};
constexpr std::string_view kNotJsonLines[] = {".bin", ".npy", ".parquet"};
constexpr std::string_view kNotTokens[] = {".gz", ".zst", ".jsonl", ".ndjson", ".txt", ".parquet"};
constexpr std::string_view kNotParquet[] = {".gz",  ".zst", ".jsonl", ".ndjson",
                                            ".txt", ".bin", ".npy"};

constexpr DataSourceInfo kSources[] = {
    {v1::DATA_SOURCE_TEXT, DocumentFormat::kText, kNotText},
    {v1::DATA_SOURCE_JSONL, DocumentFormat::kLines, kNotJsonLines},
    {v1::DATA_SOURCE_TOKENS, DocumentFormat::kTokens, kNotTokens},
    {v1::DATA_SOURCE_PARQUET, DocumentFormat::kRows, kNotParquet},
};
constexpr DataSourceInfo kGenerated = {v1::DATA_SOURCE_UNSPECIFIED, DocumentFormat::kNone, {}};

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
