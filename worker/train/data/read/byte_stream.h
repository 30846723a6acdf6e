// Reads plain, gzip (.gz) and Zstandard (.zst) files of text: in chunks, or line by line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/train/data/remote/progress.h"

namespace nsa::train {

// The decompressed bytes of a text file, in order. The ending of the file's name says whether it is
// compressed. Memory use does not depend on the size of the file or of what it decompresses to.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Reads up to to.size() bytes; returns 0 at the end. Errors name the file: DataLoss if a
  // compressed file is damaged or ends too early; InvalidArgument if the file is not text but of a
  // kind that file_kind.h recognises, e.g. an archive without the ending .gz; Cancelled.
  virtual absl::StatusOr<size_t> Read(std::span<char> to) = 0;

  // Whether Open() decompresses a file of this name.
  static bool IsCompressed(const std::filesystem::path& path);

  // Opens a file or a URL. NotFound, PermissionDenied or InvalidArgument (a folder), naming the
  // file, or the errors of DataFile::Open() for a URL. `progress` must outlive the stream.
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(const std::filesystem::path& path,
                                                          ReadProgress* progress);
};

// Reads lines, without their '\n'.
class LineReader {
 public:
  // Bytes. A longer line is an error; otherwise a binary file would fill the memory.
  static constexpr size_t kLongestLine = size_t{256} << 20;

  LineReader(std::unique_ptr<ByteStream> stream, std::string name)
      : stream_(std::move(stream)), name_(std::move(name)) {}

  // False at the end. `line` is valid until the next call.
  absl::StatusOr<bool> Next(std::string_view* line);

  // 1-based number of the last line that Next() returned.
  int64_t line_number() const { return line_number_; }

 private:
  const std::unique_ptr<ByteStream> stream_;
  const std::string name_;
  std::string buffer_;
  size_t begin_ = 0;  // index in buffer_ of the first byte that was not returned yet
  bool ended_ = false;
  int64_t line_number_ = 0;
};

// Appends up to 1 MiB of a stream to `to`; false at the end.
absl::StatusOr<bool> AppendChunk(ByteStream* stream, std::string* to);

}  // namespace nsa::train
