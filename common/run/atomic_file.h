// Whole files: read at once, replaced at once.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa {

// Replaces `path` by a file with this content: temporary name beside it, fsync, rename, fsync of
// the folder. A reader sees the old file or the new one. Two processes may not write the same path
// at once. Mode 0600. ResourceExhausted when the disk is full (the old file is then still there).
// A symbolic link at either name is replaced, never followed.
absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

// The same in a folder that is open for reading, whatever has become of its path: only the last
// part of `path` counts, messages name the whole.
absl::Status WriteFileAtomically(int folder, const std::filesystem::path& path,
                                 std::string_view content);

// The content. NotFound without the file; works for files of /proc, whose size is not known before.
absl::StatusOr<std::string> ReadWholeFile(const std::filesystem::path& path);

// What is left to read of a file that is open; messages name `path`.
absl::StatusOr<std::string> ReadWholeFile(int fd, const std::filesystem::path& path);

}  // namespace nsa
