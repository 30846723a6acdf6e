#include "worker/train/data/read/parquet/row_filter.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nsa::train::parquet {

absl::StatusOr<std::unique_ptr<RowFilter>> RowFilter::Open(
    const std::filesystem::path& path, std::shared_ptr<const RecordFilter> filter,
    ReadProgress* progress) {
  std::unique_ptr<RowFilter> rows(new RowFilter(std::move(filter)));
  for (const FieldCondition& condition : rows->filter_->conditions()) {
    auto reader = ColumnReader::Open(path, condition.name(), progress, {}, condition.key());
    NSA_RETURN_IF_ERROR(reader.status());
    if ((*reader)->has_lists()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: column '%s' has lists (must be a column of texts); set %s to another one",
          path.string(), condition.name(), condition.key()));
    }
    rows->columns_.push_back({.reader = *std::move(reader)});
  }
  return rows;
}

absl::StatusOr<bool> RowFilter::Passes(int64_t row, FilterTally* tally) {
  for (Column& column : columns_) {
    while (!column.ended && column.reader->row() < row) {
      NSA_ASSIGN_OR_RETURN(const bool found, column.reader->Next(&column.text));
      column.ended = !found;
    }
  }
  return filter_->Passes(
      [&](size_t i) -> std::optional<FieldValue> {
        const Column& column = columns_[i];
        if (column.ended || column.reader->row() != row) return std::nullopt;
        return TextValue(column.text);
      },
      tally);
}

void RowFilter::SkipGroups(int64_t row) {
  for (Column& column : columns_) column.reader->SkipGroups(row);
}

}  // namespace nsa::train::parquet
