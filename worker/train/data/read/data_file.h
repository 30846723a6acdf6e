// A regular file that is read at given offsets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "worker/train/data/read/byte_stream.h"

namespace nsa::train {

class DataFile {
 public:
  // Opens `path`. NotFound, PermissionDenied, or InvalidArgument (a folder, a pipe or a device),
  // naming the file. `progress` must outlive the object.
  static absl::StatusOr<DataFile> Open(const std::filesystem::path& path, ReadProgress* progress);

  // Fills `to` with the bytes from `offset` on, which is at least 0, and adds their number to the
  // progress. DataLoss, naming the file, if the file ends before; Cancelled.
  absl::Status ReadAt(int64_t offset, std::span<char> to) const;

  // The first `count` bytes; fewer if the file is shorter.
  absl::StatusOr<std::string> Head(int64_t count) const;

  // Bytes, when the file was opened.
  int64_t size() const { return size_; }
  const std::string& name() const { return name_; }

 private:
  DataFile(Fd fd, std::string name, int64_t size, ReadProgress* progress)
      : fd_(std::move(fd)), name_(std::move(name)), size_(size), progress_(progress) {}

  Fd fd_;
  std::string name_;
  int64_t size_;
  ReadProgress* progress_;
};

}  // namespace nsa::train
