// The footer of a Parquet file: its columns, and where one of them lies in each row group.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/train/data/read/data_file.h"

namespace nsa::train::parquet {

// The part of a row group that holds one column. Checked: its pages lie within the file.
struct ColumnChunk {
  int64_t rows = 0;
  int64_t values = 0;  // as many, or more if a row is a list; nulls included
  int64_t begin = 0;   // byte of its first page
  int64_t end = 0;     // byte behind its last page
  int64_t codec = 0;   // one that Decompress() knows
};

struct ColumnLayout {
  int definition = 0;  // as those of TextColumn
  int repetition = 0;
  std::vector<ColumnChunk> chunks;
};

// Reads the footer of `file`, and the layout of its column `column`, which must hold text. Errors
// name the file and the byte: InvalidArgument for what is no Parquet file, is encrypted, has no
// such column (the message lists the columns that hold text), for a column of another kind (a
// structure, a list within a list, a number) and for an unknown codec; DataLoss for a damaged
// footer. Memory: the footer, of at most 64 MiB, and once more as much.
// With `field` it is the column of that field of the structures in the list `column`
// (nsa::parquet::FindFieldOfList()). `key`: the key of the job that names the column.
absl::StatusOr<ColumnLayout> ReadLayout(const DataFile& file, std::string_view column,
                                        std::string_view field = {},
                                        std::string_view key = "data.text_field");

}  // namespace nsa::train::parquet
