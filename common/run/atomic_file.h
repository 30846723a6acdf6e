// Reads and writes whole files, and replaces them atomically.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa {

// Replaces `path` by a file with this content: writes `path`.tmp, calls fsync, renames it and calls
// fsync on the folder. A reader sees either the old file or the new one. Two processes must not
// write the same path at the same time. The mode is 0600. ResourceExhausted if the disk is full;
// the old file is then unchanged. A symbolic link at either name is replaced, never followed.
absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

// The same in the folder `folder`, which is open for reading, even if its path has changed. Only
// the last part of `path` is used to open the file; the whole path appears in error messages.
absl::Status WriteFileAtomically(int folder, const std::filesystem::path& path,
                                 std::string_view content);

// The same for a file that exists, whose owner, group and mode stay. PermissionDenied if this
// process may not give a file to that owner; the old file is then unchanged.
absl::Status ReplaceFileAtomically(const std::filesystem::path& path, std::string_view content);

// The content of a file. NotFound if there is no file; FailedPrecondition if it is not a regular
// one: a pipe never blocks it. Works for files in /proc, whose size is not known in advance.
absl::StatusOr<std::string> ReadWholeFile(const std::filesystem::path& path);

// The same for what a person names: a pipe is read to its end, however long that takes.
// InvalidArgument if what is no regular file has more than 256 MiB, as /dev/zero.
absl::StatusOr<std::string> ReadWholeFileOrPipe(const std::filesystem::path& path);

// The rest of an open file. `path` is only for error messages.
absl::StatusOr<std::string> ReadWholeFile(int fd, const std::filesystem::path& path);

}  // namespace nsa
