// Which rows of a Parquet file pass a filter, read beside the column of texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/data/record_filter.h"
#include "worker/train/data/read/parquet/column_reader.h"

namespace nsa::train::parquet {

// Memory: that of a ColumnReader for each field of the filter.
class RowFilter {
 public:
  // Each field of `filter` must be a column of texts, and none of lists. The errors of
  // ColumnReader::Open(), with the key of the field. `progress` must outlive the object.
  static absl::StatusOr<std::unique_ptr<RowFilter>> Open(const std::filesystem::path& path,
                                                         std::shared_ptr<const RecordFilter> filter,
                                                         ReadProgress* progress);

  // Whether row `row` (1-based, more than in the call before) passes, which is added to `tally`. A
  // null is a field that is missing. The errors of ColumnReader::Next().
  absl::StatusOr<bool> Passes(int64_t row, FilterTally* tally);

  // As ColumnReader::SkipGroups().
  void SkipGroups(int64_t row);

 private:
  struct Column {
    std::unique_ptr<ColumnReader> reader;
    std::string_view text;  // of the row reader->row()
    bool ended = false;
  };

  explicit RowFilter(std::shared_ptr<const RecordFilter> filter) : filter_(std::move(filter)) {}

  const std::shared_ptr<const RecordFilter> filter_;
  std::vector<Column> columns_;  // of the conditions of the filter
};

}  // namespace nsa::train::parquet
