// Decodes the byte arrays of a page.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nsa::train::parquet {

// As numbered in the file.
enum Encoding : int32_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
};

// The values of a dictionary page. Memory: four bytes for each, besides the page.
class Dictionary {
 public:
  // `page` holds `count` values one after another and must outlive the object. DataLoss.
  static absl::StatusOr<Dictionary> Read(std::string_view page, int64_t count);

  // DataLoss for an index that is not below the number of values.
  absl::StatusOr<std::string_view> At(uint32_t index) const;

 private:
  std::string_view page_;
  std::vector<uint32_t> begins_;  // where each value's length is
};

// The values of a page, in order.
class ValueReader {
 public:
  virtual ~ValueReader() = default;

  // The next value, valid until the next call. DataLoss if there is none.
  virtual absl::StatusOr<std::string_view> Next() = 0;

  // `bytes` are those of a page without its levels. `dictionary` may be null if the column has
  // none; both must outlive the reader. InvalidArgument for an encoding that byte arrays do not
  // have; DataLoss. `most`: how many values there can be.
  static absl::StatusOr<std::unique_ptr<ValueReader>> Make(int64_t encoding, std::string_view bytes,
                                                           int64_t most,
                                                           const Dictionary* dictionary);
};

}  // namespace nsa::train::parquet
