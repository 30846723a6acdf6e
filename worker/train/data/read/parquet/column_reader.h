// Reads the texts of one column of a Parquet file, row by row.
//
//   PAR1 | pages of the columns, row group after row group | footer | its length | PAR1
//
// A row group has one run of pages per column: a dictionary page perhaps, then data pages. A data
// page has definition levels if the column may have nulls, then the values that are none.
// Read are pages of version 1 and 2, compressed or not (codec.h), in the encodings of values.h, of
// columns of texts that are not nested. Checksums of pages are compared if the file has them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/data/read/data_file.h"
#include "worker/train/data/read/parquet/codec.h"
#include "worker/train/data/read/parquet/hybrid.h"
#include "worker/train/data/read/parquet/metadata.h"
#include "worker/train/data/read/parquet/page_header.h"
#include "worker/train/data/read/parquet/values.h"

namespace nsa::train::parquet {

// Memory: one page and one dictionary page, each as it is in the file and decompressed, and the
// layout (metadata.h).
class ColumnReader {
 public:
  // The errors of DataFile::Open() and ReadLayout(). `progress` must outlive the reader.
  static absl::StatusOr<std::unique_ptr<ColumnReader>> Open(const std::filesystem::path& path,
                                                            std::string_view column,
                                                            ReadProgress* progress);

  // The text of the next row that is not null, valid until the next call; false at the end. Errors
  // name the file, the byte of the page and the column: DataLoss for a damaged file,
  // InvalidArgument for an encoding that is not read; Cancelled.
  absl::StatusOr<bool> Next(std::string_view* text);

  // Passes the row groups that lie whole before row `row` (0-based), without reading them. Call it
  // before the first Next().
  void SkipGroups(int64_t row);

  // 1-based number of the row that Next() returned last.
  int64_t row() const { return row_; }
  // Nulls that Next() passed.
  int64_t nulls() const { return nulls_; }

 private:
  ColumnReader(DataFile file, ColumnLayout layout, std::string column)
      : file_(std::move(file)), layout_(std::move(layout)), column_(std::move(column)) {}

  absl::StatusOr<bool> NextOfPage(std::string_view* text);
  absl::StatusOr<bool> NextPage();
  absl::Status ReadPage();
  absl::StatusOr<PageHeader> ReadHeader();
  absl::Status ReadBody(const PageHeader& header);
  absl::Status OpenDictionary(const PageHeader& header);
  absl::Status OpenData(const PageHeader& header);
  absl::Status OpenDataV2(const PageHeader& header);
  absl::Status OpenValues(const PageHeader& header, std::string_view levels,
                          std::string_view values);
  absl::Status AtPage(const absl::Status& status) const;

  const DataFile file_;
  const ColumnLayout layout_;
  const std::string column_;
  size_t chunk_ = 0;       // index of the chunk that is read
  int64_t rows_left_ = 0;  // of the chunk; those of the open page are not among them
  bool in_chunk_ = false;
  int64_t next_page_ = 0;  // byte of the file
  int64_t page_ = 0;       // byte of the file of the open page, for messages
  int64_t page_rows_ = 0;  // rows of the open page that were not passed yet
  std::string header_;     // the bytes of a header, and perhaps more
  PageBytes body_;         // of the open page, as in the file
  PageBytes plain_;        // the same, decompressed
  PageBytes dictionary_page_;
  std::optional<Dictionary> dictionary_;
  std::optional<HybridReader> levels_;  // of the open page; nothing if it has no nulls
  std::unique_ptr<ValueReader> values_;
  int64_t row_ = 0;
  int64_t nulls_ = 0;
};

}  // namespace nsa::train::parquet
