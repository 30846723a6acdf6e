// The header in front of each page of a column.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace nsa::train::parquet {

enum PageType : int32_t { kDataPage = 0, kIndexPage = 1, kDictionaryPage = 2, kDataPageV2 = 3 };

struct PageHeader {
  int64_t type = -1;
  int64_t size = -1;        // bytes behind the header
  int64_t plain_size = -1;  // the same after decompression
  std::optional<uint32_t> crc;
  int64_t values = -1;  // nulls included
  int64_t encoding = -1;
  // Of data pages of version 1.
  int64_t level_encoding = -1;  // of the definition levels
  int64_t repetition_encoding = -1;
  // Of data pages of version 2: bytes of the levels, which come first and are never compressed.
  int64_t repetition_bytes = 0;
  int64_t definition_bytes = 0;
  bool compressed = true;

  size_t header_bytes = 0;  // of the header itself
};

// A page may have so many bytes, before and after decompression.
inline constexpr int64_t kLargestPage = int64_t{1} << 30;

// Reads the header at the front of `bytes`. OutOfRange if it does not end within them; DataLoss for
// a header that cannot be. Every size in the result is from 0 to kLargestPage.
absl::StatusOr<PageHeader> ReadPageHeader(std::string_view bytes);

}  // namespace nsa::train::parquet
