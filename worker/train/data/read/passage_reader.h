// Divides a text file into passages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/data/read/byte_stream.h"

namespace nsa::train {

// A passage has at least `passage_bytes` bytes and ends at a blank line; without a blank line it
// ends at a newline before it is four times as long, or else at four times as many bytes. The last
// one ends with the file and may have fewer bytes, or up to twice as many. 0: the whole file is one
// passage, of at most `largest` bytes.
//
// Memory: four passages and 2 MiB; with 0 the file.
class PassageReader {
 public:
  // `name` is for messages.
  PassageReader(std::unique_ptr<ByteStream> stream, std::string name, size_t passage_bytes,
                size_t largest)
      : stream_(std::move(stream)),
        name_(std::move(name)),
        passage_bytes_(passage_bytes),
        largest_(largest) {}

  // False at the end. The errors of ByteStream::Read(); InvalidArgument for a file of more than
  // `largest` bytes.
  absl::StatusOr<bool> Next(std::string* passage);

  // Byte of the text at which the passage of the last Next() begins.
  int64_t begin() const { return begin_; }

 private:
  absl::Status ReadAhead(size_t count);
  size_t EndOfPassage() const;
  absl::StatusOr<bool> NextWhole(std::string* passage);

  const std::unique_ptr<ByteStream> stream_;
  const std::string name_;
  const size_t passage_bytes_;
  const size_t largest_;
  std::string content_;  // read ahead; the part before position_ was returned
  size_t position_ = 0;
  int64_t dropped_ = 0;  // bytes of the text before content_
  int64_t begin_ = 0;
  bool ended_ = false;  // the stream
};

}  // namespace nsa::train
