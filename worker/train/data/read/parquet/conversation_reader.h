// Reads the conversations of a Parquet file, row by row: a list of structures with the texts `role`
// and `content`, or the columns `prompt` and `completion`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/render.h"
#include "worker/train/data/read/parquet/column_reader.h"

namespace nsa::train::parquet {

// Memory: that of two ColumnReaders.
class ConversationReader {
 public:
  // The list of messages is the column `messages_field`; a file without it must have the other two.
  // The errors of ColumnReader::Open(); of a file with neither, those of the first. `progress` must
  // outlive the reader.
  static absl::StatusOr<std::unique_ptr<ConversationReader>> Open(const std::filesystem::path& path,
                                                                  std::string_view messages_field,
                                                                  ReadProgress* progress);

  // Replaces `messages` by those of the next row that has some; false at the end. A message without
  // a role or a content has an empty one. Rows without messages, and such that lack the question or
  // the answer, are passed. The errors of ColumnReader::Next(); DataLoss for a row that has not as
  // many roles as contents.
  absl::StatusOr<bool> Next(std::vector<ChatMessage>* messages);

  // 1-based number of the row that Next() returned last.
  int64_t row() const { return row_; }
  // Rows that Next() passed.
  int64_t nulls() const { return nulls_; }

 private:
  ConversationReader(std::string name, bool list, std::unique_ptr<ColumnReader> first,
                     std::unique_ptr<ColumnReader> second)
      : name_(std::move(name)), list_(list), first_(std::move(first)), second_(std::move(second)) {}
  absl::StatusOr<bool> NextOfList(std::vector<ChatMessage>* messages);
  absl::StatusOr<bool> NextPair(std::vector<ChatMessage>* messages);

  const std::string name_;  // of the file
  const bool list_;
  const std::unique_ptr<ColumnReader> first_;   // roles or prompts
  const std::unique_ptr<ColumnReader> second_;  // contents or completions
  int64_t row_ = 0;
  int64_t nulls_ = 0;
};

}  // namespace nsa::train::parquet
