// The properties of each data source of a job (data.source), in a table with one row per source.
// Defaults, preflight and the worker's reader all use this table, so that they agree.
#pragma once

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
  kLines,   // Each line that is not blank is a document; `text_of_line` extracts its text.
  kTokens,  // Little-endian uint16 tokens; the tokenizer's separator begins a document.
};

struct DataSourceInfo {
  v1::DataSource source;
  DocumentFormat format;
  // File name endings that show that a file is for another source.
  std::span<const std::string_view> wrong_endings;
  // kLines: returns the text in a line. The error says what is wrong, without the line's number.
  absl::StatusOr<std::string> (*text_of_line)(std::string_view line);
  // kLines: describes what a line must be, for error messages.
  std::string_view line_format;

  bool has_files() const { return format != DocumentFormat::kNone; }
  // True if the files contain text, which a tokenizer converts to tokens.
  bool has_text() const {
    return format == DocumentFormat::kText || format == DocumentFormat::kLines;
  }
};

// The row of a source. A source without a row is generated: it has no files.
const DataSourceInfo& DataSourceInfoOf(v1::DataSource source);

// "text, jsonl or tokens": the sources that read files.
std::string SourcesWithFiles();

}  // namespace nsa
