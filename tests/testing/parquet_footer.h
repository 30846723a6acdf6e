// A Parquet file that has nothing but a footer, for tests of what is read of one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nsa {

// A column and its bytes in the only row group; a text, or with `text` false a number.
struct FooterColumn {
  std::string name;
  char bytes = 0;  // below 64
  bool text = true;
};

// Thrift's compact protocol: each byte of a field is the distance of its number and its type.
inline std::string ParquetFooterOf(const std::vector<FooterColumn>& columns) {
  const auto zigzag = [](size_t value) { return static_cast<char>(value << 1); };
  const auto list = [](size_t size) {
    return std::string{'\x29', static_cast<char>(size << 4 | 12)};
  };
  const auto named = [](const std::string& name) { return static_cast<char>(name.size()) + name; };
  std::string schema =
      list(columns.size() + 1) + '\x48' + named("s") + '\x15' + zigzag(columns.size()) + '\0';
  std::string group = list(1) + '\x19' + static_cast<char>(columns.size() << 4 | 12);
  for (const FooterColumn& column : columns) {
    schema += std::string{'\x15', zigzag(column.text ? 6 : 2), '\x38'} + named(column.name) + '\0';
    group += std::string{'\x3c', '\x66', zigzag(static_cast<size_t>(column.bytes)), '\0', '\0'};
  }
  return schema + group + '\0' + '\0';
}

inline std::string ParquetFileOf(const std::vector<FooterColumn>& columns) {
  const std::string footer = ParquetFooterOf(columns);
  return "PAR1" + footer + std::string{static_cast<char>(footer.size()), '\0', '\0', '\0'} + "PAR1";
}

}  // namespace nsa
