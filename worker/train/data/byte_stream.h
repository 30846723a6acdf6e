// Reading files: plain, gzip (.gz) or Zstandard (.zst), in chunks, by whole or by line.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa {

// What a reading thread and the one that waits for it share.
struct ReadProgress {
  std::atomic<int64_t> bytes{0};  // read from files, and made tokens of, so far
  std::atomic<bool> cancelled{
      false};  // set when nobody waits any more: reading ends with Cancelled
};

// Decompressed bytes of a file, in order. Memory does not depend on the file's size.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Reads up to to.size() bytes; 0 at the end. DataLoss, naming the file, when a compressed file is
  // damaged or ends too early.
  virtual absl::StatusOr<size_t> Read(std::span<char> to) = 0;

  // NotFound, PermissionDenied or InvalidArgument (a folder), naming the file. `progress` outlives
  // the stream.
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(const std::filesystem::path& path,
                                                          ReadProgress* progress);
};

// Lines without their '\n'.
class LineReader {
 public:
  // Longer lines are refused, so that a binary file does not fill the memory.
  static constexpr size_t kLongestLine = size_t{256} << 20;

  LineReader(std::unique_ptr<ByteStream> stream, std::string name)
      : stream_(std::move(stream)), name_(std::move(name)) {}

  // False at the end. `line` is valid until the next call.
  absl::StatusOr<bool> Next(std::string_view* line);

  // 1-based number of the line returned last.
  int64_t line_number() const { return line_number_; }

 private:
  const std::unique_ptr<ByteStream> stream_;
  const std::string name_;
  std::string buffer_;
  size_t begin_ = 0;  // of what was not returned yet
  bool ended_ = false;
  int64_t line_number_ = 0;
};

// The whole of a stream.
absl::Status ReadAll(ByteStream* stream, std::string* to);

}  // namespace nsa
