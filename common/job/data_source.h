// A table of the data sources that read files (data.source). Defaults, preflight and the worker's
// reader all use this table, so that they agree.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// How a file is divided into documents.
enum class DocumentFormat {
  kNone,    // There are no files; the tokens are generated.
  kText,    // The file is one text.
  kLines,   // Each line that is not blank is a document; `text_of_line` reads it.
  kTokens,  // Tokens in one of the formats of docs/job_file.md; a separator token begins a
            // document.
};

struct DataSourceInfo {
  v1::DataSource source;
  DocumentFormat format;
  // File name endings that belong to another source.
  std::span<const std::string_view> wrong_endings;
  // kLines: the text of a line. The error says what is wrong with the line, without naming it.
  absl::StatusOr<std::string> (*text_of_line)(std::string_view line);
  // kLines: what a line must be, for messages.
  std::string_view line_format;

  bool has_files() const { return format != DocumentFormat::kNone; }
  // The files hold text, which a tokenizer turns into tokens.
  bool has_text() const {
    return format == DocumentFormat::kText || format == DocumentFormat::kLines;
  }
};

// A source that is not in the table is a generated one.
const DataSourceInfo& DataSourceInfoOf(v1::DataSource source);

// "text, jsonl or tokens": the sources that read files.
std::string SourcesWithFiles();

}  // namespace nsa
