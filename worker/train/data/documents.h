// The documents of a job's files, one after the other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/byte_stream.h"

namespace nsa {

struct Document {
  std::string text;              // text, jsonl
  std::vector<uint16_t> tokens;  // tokens, without separators
  std::string place;             // "books.jsonl:17", for messages
};

struct DocumentOptions {
  v1::DataSource source = v1::DATA_SOURCE_TEXT;
  std::vector<std::filesystem::path> files;
  int32_t separator = 0;  // of token files
  // Text files are cut into passages of at least this many bytes that end at a blank line (at the
  // latest after four times as many, at a line's end), so that some can be held out; 0: a file is
  // one document.
  size_t passage_bytes = 0;
};

// Reads one file at a time. Memory: the largest document (text: the largest file).
class DocumentReader {
 public:
  DocumentReader(DocumentOptions options, ReadProgress* progress);
  ~DocumentReader();

  // The next document that is not empty; false at the end. Errors name file and line: NotFound,
  // InvalidArgument (a line that is no JSON object with a string `text`; a token file of odd
  // length), DataLoss.
  absl::StatusOr<bool> Next(Document* document);

 private:
  absl::StatusOr<bool> NextOfFile(Document* document);
  absl::StatusOr<bool> NextLine(Document* document);
  absl::StatusOr<bool> NextPassage(Document* document);
  absl::StatusOr<bool> NextTokens(Document* document);
  absl::Status OpenFile();

  const DocumentOptions options_;
  ReadProgress* const progress_;
  size_t file_ = 0;  // of options_.files, the one being read
  bool open_ = false;
  std::unique_ptr<LineReader> lines_;  // jsonl
  std::string content_;                // text, tokens: the file
  size_t position_ = 0;                // in content_
};

}  // namespace nsa
