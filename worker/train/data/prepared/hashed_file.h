// A new file whose SHA-256 is computed while it is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/job/data/sha256.h"

namespace nsa::train {

// Errors name the file; ResourceExhausted when the disk or a quota is full.
class HashedFile {
 public:
  // AlreadyExists if there is such a file.
  static absl::StatusOr<std::unique_ptr<HashedFile>> Create(const std::filesystem::path& path);

  // Bytes are written once there is a MiB of them.
  absl::Status Append(std::string_view bytes);

  // Writes the rest, calls fsync, closes the file and returns its hash.
  absl::StatusOr<std::string> Finish();

  // Appended so far.
  int64_t bytes() const { return bytes_; }

 private:
  HashedFile(Fd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}
  absl::Status Flush();
  absl::Status Failed(int error, const char* what) const;

  Fd fd_;
  const std::string name_;
  Sha256Sum sum_;
  std::string buffer_;
  int64_t bytes_ = 0;
};

// Writes a whole new file in this way and returns its hash.
absl::StatusOr<std::string> WriteHashedFile(const std::filesystem::path& path,
                                            std::string_view content);

}  // namespace nsa::train
