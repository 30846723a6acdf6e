// Reads the documents of a job's files in order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/render.h"
#include "common/job/data/data_files.h"
#include "common/job/data/record_filter.h"
#include "common/job/data_source.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/read/byte_stream.h"
#include "worker/train/data/read/parquet/column_reader.h"
#include "worker/train/data/read/parquet/conversation_reader.h"
#include "worker/train/data/read/parquet/row_filter.h"
#include "worker/train/data/read/passage_reader.h"
#include "worker/train/data/read/token_reader.h"

namespace nsa::train {

struct Document {
  std::string text;                   // of text, jsonl and parquet files
  std::vector<ChatMessage> messages;  // of conversations, whose text is TextOfMessages()
  std::vector<Token> tokens;          // of token files, without separators
  std::string place;                  // "books.jsonl:17", for messages
  std::string file;                   // of token files, for messages
  int64_t first_token = 0;            // of token files: the place of tokens[0] in its file
  int64_t line = 0;                   // of jsonl files (of parquet files the row), 1-based
  // 0-based place in its file, counted as the file does: lines of jsonl files, rows of parquet
  // files, passages of text files, documents of token files. Empty ones count too.
  int64_t index = 0;
};

struct DocumentOptions {
  v1::DataSource source = v1::DATA_SOURCE_TEXT;
  std::vector<std::filesystem::path> files;
  // The field of a jsonl line or the column of a parquet file that has the text.
  std::string text_field = std::string(kDefaultTextField);
  // Documents of jsonl and parquet files are conversations, and text_field has their messages.
  bool conversations = false;
  // The records of jsonl and parquet files that are read; null: all of them.
  std::shared_ptr<const RecordFilter> filter;
  // The token between documents in a token file, or kNoSeparator: then a file is one document, or
  // is divided into passages. Without a value only files that know their documents (Megatron) can
  // be read; of these the separator is only removed from the beginning and the end of each
  // document.
  std::optional<int32_t> separator;
  // Text files are divided into passages of at least this many bytes (passage_reader.h), so that
  // some of them can be held out for validation. 0: each file is one document. A passage of a token
  // file without separators has passage_bytes / 2 tokens.
  size_t passage_bytes = 0;
  // Bytes of text that a document of a compressed text file may have, so that a small archive
  // cannot fill the memory. (A line of a jsonl file has its own limit, LineReader::kLongestLine.)
  size_t largest_decompressed = size_t{1} << 30;
};

// How the documents of a set are read from these of its files: without a separator, and text files
// without passages.
DocumentOptions ReadingOfSet(const DataFiles& files, const std::vector<std::string>& paths);

// Reads one file at a time, as a stream. Memory: the largest document, and up to 6 MiB; of parquet
// files what parquet/column_reader.h says.
class DocumentReader {
 public:
  DocumentReader(DocumentOptions options, ReadProgress* progress);
  ~DocumentReader();

  // Reads the next document that is not empty; false at the end. Lines and rows that do not pass
  // the filter, and those whose text is null, are skipped; the former need no text. Errors name the
  // file and the line: NotFound, InvalidArgument (a line that is not what the source expects, a
  // file that is not a token file or needs a separator), DataLoss.
  absl::StatusOr<bool> Next(Document* document);

  // Passes the documents of the first file whose index is below this one, as cheaply as its format
  // allows: of parquet files whole row groups, of jsonl files lines that are not parsed, of
  // Megatron files nothing is read. Call it before the first Next(), which then returns their
  // errors.
  void SkipTo(int64_t index) { skip_to_ = index; }

  // Lines and rows without a text that Next() skipped. Of parquet files also such that do not pass
  // the filter.
  int64_t nulls() const;
  // What the filter has met: lines, and rows with a text.
  const FilterTally& tally() const { return tally_; }
  // Files of 0 bytes that Next() passed, whatever their format.
  int64_t empty_files() const { return empty_files_; }

 private:
  absl::StatusOr<bool> NextOfFile(Document* document);
  absl::StatusOr<bool> NextLine(Document* document);
  absl::StatusOr<bool> NextPassage(Document* document);
  absl::StatusOr<bool> NextTokens(Document* document);
  absl::StatusOr<bool> NextRow(Document* document);
  absl::StatusOr<bool> NextConversation(Document* document);
  absl::StatusOr<bool> NextPassingRow(Document* document);
  absl::StatusOr<bool> ReadLine(std::string_view line, Document* document, bool* passes);
  absl::Status OpenRows(const std::filesystem::path& path);
  absl::Status AppendTokens(int64_t end, int32_t separator, Document* document);
  absl::Status OpenFile();
  absl::Status OpenTokens(const std::filesystem::path& path);
  absl::Status OpenText(const std::filesystem::path& path);
  absl::Status Skip();

  const DocumentOptions options_;
  const DataSourceInfo& source_;
  ReadProgress* const progress_;
  size_t file_ = 0;  // index of the file being read, in options_.files
  bool open_ = false;
  std::unique_ptr<PassageReader> passages_;                     // for text files
  std::unique_ptr<LineReader> lines_;                           // for jsonl files
  std::unique_ptr<TokenReader> tokens_;                         // for token files
  std::unique_ptr<parquet::ColumnReader> rows_;                 // for parquet files of texts
  std::unique_ptr<parquet::ConversationReader> conversations_;  // for those of conversations
  std::unique_ptr<parquet::RowFilter> row_filter_;              // for both, with a filter
  FilterTally tally_;
  int64_t nulls_ = 0;  // of jsonl files, and of the parquet files before this one
  int64_t empty_files_ = 0;
  int64_t next_index_ = 0;  // of text and token files: of the next document
  int64_t skip_to_ = 0;     // in the first file
};

}  // namespace nsa::train
