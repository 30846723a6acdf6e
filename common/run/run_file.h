// Reads what a worker has written into its run folder. The worker may run as another user than the
// agent that reads, and that user can do anything in the folder at any moment: exchange a file for
// a link or a pipe, link another user's file there, or make a file as large as the disk. A reader
// that is more powerful than the worker must get nothing but the worker's own files.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

struct FileOwner {
  uid_t uid = 0;
  gid_t gid = 0;
  bool operator==(const FileOwner&) const = default;
};

// The owner of a folder. FailedPrecondition if `folder` is a link or no folder.
absl::StatusOr<FileOwner> OwnerOfFolder(const std::filesystem::path& folder);

// Opens a file for reading. NotFound if there is none. FailedPrecondition unless it is a regular
// file (no link) that belongs to the owner of its folder, and the folder is no link. The folders
// above must not be writable for the worker. Never blocks.
absl::StatusOr<Fd> OpenRunFile(const std::filesystem::path& path);

// Opens a socket under the same rules, with O_PATH: connect to /proc/self/fd/N.
absl::StatusOr<Fd> OpenRunSocket(const std::filesystem::path& path);

// The first `longest` bytes of such a file, or all of it if it is shorter.
absl::StatusOr<std::string> ReadRunFile(const std::filesystem::path& path, size_t longest);

// The first `longest` bytes of an open file. `path` is only for error messages.
absl::StatusOr<std::string> ReadBeginning(int fd, const std::filesystem::path& path,
                                          size_t longest);

}  // namespace nsa
