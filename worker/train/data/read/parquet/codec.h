// How the pages of a Parquet file are compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nsa::train::parquet {

// As numbered in the file.
enum Codec : int32_t {
  kUncompressed = 0,
  kSnappy = 1,
  kGzip = 2,
  kBrotli = 4,
  kZstd = 6,
  kLz4Raw = 7,  // a block of LZ4; the codec before it, 5, has a frame that no text describes
};

// "snappy"; "codec 17" for a number that is not known.
std::string CodecName(int64_t codec);

// InvalidArgument, naming the codec, for one that Decompress() does not know.
absl::Status CheckCodec(int64_t codec);

// Bytes that are not initialised: memory that nothing is written to is not taken from the machine,
// so a page that claims to be large costs nothing before it is.
class PageBytes {
 public:
  // Makes room for `size` bytes; the content is lost.
  char* Resize(size_t size) {
    if (size > capacity_) {
      bytes_ = std::make_unique_for_overwrite<char[]>(size);
      capacity_ = size;
    }
    size_ = size;
    return bytes_.get();
  }
  std::string_view view() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t capacity_ = 0;
  size_t size_ = 0;
};

// Sets `to` to the `size` bytes that `from` decompresses to. DataLoss if it is damaged or has
// another size. Refuses a size that `from` cannot have before memory is taken for it.
absl::Status Decompress(int64_t codec, std::string_view from, size_t size, PageBytes* to);

}  // namespace nsa::train::parquet
