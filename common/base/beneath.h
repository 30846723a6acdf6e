// Opens files that others may replace. A worker, or anyone who can write to its folders, may put a
// symbolic link or a pipe in the place of a file at any moment.
#pragma once

#include <filesystem>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

// Opens `inner`, a path relative to `root`, with the flags of open(2). FailedPrecondition if any
// part of `inner` is a symbolic link, if the path leaves `root`, or if it is neither a regular file
// nor a folder. Never blocks, as opening a pipe would. The path of the root itself may contain
// links. Where openat2() is missing or forbidden, the path is opened part by part, by the same
// rules.
absl::StatusOr<Fd> OpenBeneath(const std::filesystem::path& root,
                               const std::filesystem::path& inner, int flags, int mode = 0);

// Tries OpenBeneath() with this file, which exists, before anything depends on it. An error says
// that this machine lets no file be opened so.
absl::Status CheckOpensBeneath(const std::filesystem::path& file);

// Whether `inner` resolves beneath `root` without a symbolic link, to whatever kind of file. The
// part of the path that does not exist yet cannot be a link, so only the deepest existing part is
// checked.
bool ResolvesBeneath(const std::filesystem::path& root, std::filesystem::path inner);

// Opens a file or folder in the open folder `folder`, under the same rules. Only the last part of
// `path` is used to open it; the whole path appears in error messages.
absl::StatusOr<Fd> OpenIn(int folder, const std::filesystem::path& path, int flags, int mode = 0);

// Removes the file `inner` beneath `root`, under the same rules.
absl::Status RemoveBeneath(const std::filesystem::path& root, const std::filesystem::path& inner);

}  // namespace nsa
