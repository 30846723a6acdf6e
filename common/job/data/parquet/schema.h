// The columns of a Parquet file, as the schema in its footer lists them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nsa::parquet {

// Where a column of texts is.
struct TextColumn {
  size_t leaf = 0;     // its index among the columns of a row group
  size_t leaves = 0;   // columns of a row group
  int definition = 0;  // the definition level of a text; below it there is none
  int repetition = 0;  // the largest repetition level: 1 if a row is a list of texts, else 0
};

// Finds the column of this name in a footer: the names from the top on with dots between them
// ("doc.text", "texts.list.element"), or those of a structure or list whose only column it is
// ("texts"). InvalidArgument if there is none, or if it does not hold text or lists of texts;
// DataLoss if the schema is damaged. The messages name neither file nor byte, but `key`, the key of
// the job that names the column.
absl::StatusOr<TextColumn> FindTextColumn(std::string_view footer, std::string_view name,
                                          std::string_view key = "data.text_field");

// The same for the texts of the field `field` of the structures in a list of this name, whatever is
// between the two: of the messages of a conversation ("messages", "role"), each in a list.
absl::StatusOr<TextColumn> FindFieldOfList(std::string_view footer, std::string_view list,
                                           std::string_view field);

// The column of texts, or of lists of texts, that takes the most bytes in the first row group: its
// name, as FindTextColumn() takes it. Of a thousand such columns; empty if there is none, or the
// footer is damaged.
std::string LargestTextColumn(std::string_view footer);

}  // namespace nsa::parquet
