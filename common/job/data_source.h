// The properties of each data source of a job (data.source), in a table with one row per source.
// Defaults, preflight and the worker's reader all use this table, so that they agree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// How a file is divided into documents.
enum class DocumentFormat {
  kNone,    // There are no files: the tokens are generated.
  kText,    // The file is one document.
  kLines,   // Each line that is not blank is a document; data/json_line.h extracts its text.
  kRows,    // Each row of a Parquet file is a document; one of its columns is the text.
  kTokens,  // Tokens in one of the formats of docs/job_file.md; a separator token begins a
            // document.
};

struct DataSourceInfo {
  v1::DataSource source;
  DocumentFormat format;
  // File name endings that show that a file is for another source.
  std::span<const std::string_view> wrong_endings;

  bool has_files() const { return format != DocumentFormat::kNone; }
  // True if the files contain text, which a tokenizer converts to tokens.
  bool has_text() const { return format == DocumentFormat::kText || has_fields(); }
  // True if a document can be any of its fields, and data.text_field names which.
  bool has_fields() const {
    return format == DocumentFormat::kLines || format == DocumentFormat::kRows;
  }
};

// The row of a source. A source without a row is generated: it has no files.
const DataSourceInfo& DataSourceInfoOf(v1::DataSource source);

// The source that reads a file of this name as text: parquet for .parquet; jsonl for .jsonl and
// .ndjson, also followed by .gz or .zst; text for every other name.
v1::DataSource TextSourceOf(std::string_view path);

// data.separator: none.
inline constexpr int32_t kNoSeparator = -1;

// Tokens are below this: the largest vocabulary of token files and tokenizers. (model.vocab has its
// own limit, a million.)
inline constexpr int32_t kMostTokens = 1 << 20;

// The value of data.separator: a token from 0 to 1048575, or kNoSeparator for "none".
// InvalidArgument, naming the key, for anything else.
absl::StatusOr<int32_t> ParseSeparator(std::string_view word);

// What to do when a job needs data.separator and does not set it, for messages.
inline constexpr std::string_view kSetSeparator =
    "set data.separator to the token between documents (50256 for GPT-2's tokens, 0 for bytes), or "
    "to none if the files have no such token";

// The field of a line or row that has the text if data.text_field is not set, and the one that has
// the conversation.
inline constexpr std::string_view kDefaultTextField = "text";
inline constexpr std::string_view kDefaultMessagesField = "messages";

// Whether the documents are conversations whose answers are learned (data.loss_on: assistant).
inline bool LearnsAnswers(const v1::DataSpec& data) {
  return data.loss_on() == v1::LOSS_ON_ASSISTANT;
}

// What stands between the texts of a list, in a JSON line or a row of a Parquet file: the list is
// one document.
inline constexpr char kBetweenElements = '\n';

// "text, jsonl, tokens or parquet": the sources that read files.
std::string SourcesWithFiles();

}  // namespace nsa
