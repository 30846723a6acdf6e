// Reads the texts of one column of a Parquet file, row by row.
//
//   PAR1 | pages of the columns, row group after row group | footer | its length | PAR1
//
// A row group has one run of pages per column: a dictionary page perhaps, then data pages. A data
// page has repetition levels if a row is a list (0 begins a row, 1 goes on with it), definition
// levels if there may be nulls (below the largest there is no text: the text is null, or something
// that it is in is null or an empty list), then the texts.
// Read are pages of version 1 and 2, compressed or not (codec.h), in the encodings of values.h, of
// columns of texts, also within structures and in lists. The texts of a list are one text
// (kBetweenElements). Checksums of pages are compared if the file has them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/data/read/data_file.h"
#include "worker/train/data/read/parquet/codec.h"
#include "worker/train/data/read/parquet/hybrid.h"
#include "worker/train/data/read/parquet/metadata.h"
#include "worker/train/data/read/parquet/page_header.h"
#include "worker/train/data/read/parquet/values.h"

namespace nsa::train::parquet {

// Memory: one page and one dictionary page, each as it is in the file and decompressed, the layout
// (metadata.h), and the texts of a list, of at most 1 GiB.
class ColumnReader {
 public:
  // The errors of DataFile::Open() and ReadLayout(), which says what `field` and `key` are.
  // `progress` must outlive the reader.
  static absl::StatusOr<std::unique_ptr<ColumnReader>> Open(
      const std::filesystem::path& path, std::string_view column, ReadProgress* progress,
      std::string_view field = {}, std::string_view key = "data.text_field");

  // Whether a row is a list of texts.
  bool has_lists() const { return layout_.repetition > 0; }

  // The text of the next row that has one, valid until the next call; false at the end. Errors
  // name the file, the byte of the page and the column: DataLoss for a damaged file,
  // InvalidArgument for an encoding that is not read; Cancelled.
  absl::StatusOr<bool> Next(std::string_view* text);

  // Of a column of lists: the texts of the next row, whether it has any or not; false at the end. A
  // null is an empty text, and so is what a row without a list has in its place. The errors of
  // Next(), which must not be called too.
  absl::StatusOr<bool> NextElements(std::vector<std::string>* texts);

  // Passes the row groups that lie whole before row `row` (0-based), without reading them. Call it
  // before the first Next().
  void SkipGroups(int64_t row);

  // 1-based number of the row that Next() returned last.
  int64_t row() const { return row_; }
  // Rows without a text that Next() passed: nulls, and lists that are empty or have only nulls.
  int64_t nulls() const { return nulls_; }

 private:
  ColumnReader(DataFile file, ColumnLayout layout, std::string column)
      : file_(std::move(file)), layout_(std::move(layout)), column_(std::move(column)) {}

  absl::StatusOr<bool> NextOfPage(std::string_view* text);
  absl::StatusOr<bool> NextList(std::string_view* text);
  absl::StatusOr<bool> ReadList();
  absl::StatusOr<bool> BeginsRow(bool must);
  absl::Status ReadElement();
  absl::StatusOr<int64_t> PassNulls(int64_t most);
  absl::StatusOr<bool> NextPage();
  absl::Status ReadPage();
  absl::StatusOr<PageHeader> ReadHeader();
  absl::Status ReadBody(const PageHeader& header);
  absl::Status OpenDictionary(const PageHeader& header);
  absl::Status OpenData(const PageHeader& header);
  absl::Status OpenDataV2(const PageHeader& header);
  absl::Status OpenValues(const PageHeader& header, std::string_view repetitions,
                          std::string_view definitions, std::string_view values);
  absl::Status AtPage(const absl::Status& status) const;

  const DataFile file_;
  const ColumnLayout layout_;
  const std::string column_;
  size_t chunk_ = 0;         // index of the chunk that is read
  int64_t values_left_ = 0;  // of the chunk; those of the open page are not among them
  int64_t rows_left_ = 0;    // of a chunk of lists: those that did not begin yet
  bool in_chunk_ = false;
  int64_t next_page_ = 0;    // byte of the file
  int64_t page_ = 0;         // byte of the file of the open page, for messages
  int64_t page_values_ = 0;  // of the open page, nulls included, that were not passed yet
  std::string header_;       // the bytes of a header, and perhaps more
  PageBytes body_;           // of the open page, as in the file
  PageBytes plain_;          // the same, decompressed
  PageBytes dictionary_page_;
  std::optional<Dictionary> dictionary_;
  std::optional<HybridReader> repetitions_;  // of the open page; nothing if a row is no list
  std::optional<HybridReader> definitions_;  // of the open page; nothing if there are no nulls
  std::unique_ptr<ValueReader> values_;
  std::optional<std::string> list_;  // the texts of a row, if it has any
  int64_t list_bytes_ = 0;
  std::vector<std::string>* elements_ = nullptr;  // where these go one by one, in NextElements()
  int64_t row_ = 0;
  int64_t nulls_ = 0;
};

}  // namespace nsa::train::parquet
