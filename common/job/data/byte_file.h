// A file that is read at given offsets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa {

class ByteFile {
 public:
  virtual ~ByteFile() = default;

  // Fills `to` with the bytes from `offset` on, which is at least 0. DataLoss, naming the file, if
  // it ends before.
  virtual absl::Status ReadAt(int64_t offset, std::span<char> to) const = 0;

  // The first `count` bytes; fewer if the file is shorter.
  absl::StatusOr<std::string> Head(int64_t count) const;

  // Bytes, when the file was opened.
  int64_t size() const { return size_; }
  const std::string& name() const { return name_; }

 protected:
  ByteFile(std::string name, int64_t size) : name_(std::move(name)), size_(size) {}
  ByteFile(ByteFile&&) noexcept = default;
  ByteFile& operator=(ByteFile&&) noexcept = default;

 private:
  std::string name_;
  int64_t size_;
};

}  // namespace nsa
