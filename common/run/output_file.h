// A file that a person asked for: whole, or what it was before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

// Append(), then Publish(); without that the file is as it was before. A new file has the mode that
// the umask says, one that is replaced keeps its mode and, if this user may give it away, its
// owner. A symbolic link is followed. What is no regular file, such as /dev/stdout, and a file in a
// folder that this user cannot write, and a file that is a mount point, are written in place. If
// the process is killed, nothing of the new file is left, except on a file system that has no files
// without names, such as NFS. Errors name the file;
// ResourceExhausted if there is no room. Move-only.
class OutputFile {
 public:
  static absl::StatusOr<OutputFile> Create(const std::filesystem::path& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  absl::Status Append(std::string_view bytes);
  int64_t size() const { return size_; }

  // Syncs the file and gives it its name.
  absl::Status Publish();

 private:
  bool CopyTo(const std::filesystem::path& path) const;

  OutputFile(std::string name, std::filesystem::path target, std::filesystem::path draft, Fd fd);

  std::string name_;              // for messages
  std::filesystem::path target_;  // where links lead
  std::filesystem::path draft_;   // its name before; empty: written in place, or published
  Fd fd_;
  int64_t size_ = 0;
};

// What was printed to standard output, at the end of a command. Internal if it cannot be written.
absl::Status FlushStandardOutput();

// All of a file.
absl::Status WriteOutputFile(const std::filesystem::path& path, std::string_view text);

}  // namespace nsa
