// The columns of a Parquet file, as the schema in its footer lists them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nsa::train::parquet {

// Where a column of texts is.
struct TextColumn {
  size_t leaf = 0;    // its index among the columns of a row group
  size_t leaves = 0;  // columns of a row group
  bool optional = false;
};

// Finds the column of this name in a footer. InvalidArgument if there is none, or if it does not
// hold text; DataLoss if the schema is damaged. The messages name neither file nor byte.
absl::StatusOr<TextColumn> FindTextColumn(std::string_view footer, std::string_view name);

}  // namespace nsa::train::parquet
