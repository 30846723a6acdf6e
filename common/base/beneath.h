// Opens files that others can exchange: a worker, or whoever may write into its folders, can put a
// symbolic link or a pipe where a file was, at any moment.
#pragma once

#include <filesystem>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

// Opens `inner`, a path relative to `root`, with the flags of open(2).
// FailedPrecondition when a symbolic link is on the way, when the path leaves `root`, or when what
// lies there is neither a file nor a folder. Never waits, as an open of a pipe would. The root
// itself may be reached through links. Needs Linux 5.6.
absl::StatusOr<Fd> OpenBeneath(const std::filesystem::path& root,
                               const std::filesystem::path& inner, int flags, int mode = 0);

// Opens a name in a folder that is open, under the same rules: only the last part of `path` counts,
// messages name the whole.
absl::StatusOr<Fd> OpenIn(int folder, const std::filesystem::path& path, int flags, int mode = 0);

// Removes the file `inner` beneath `root`, under the same rules.
absl::Status RemoveBeneath(const std::filesystem::path& root, const std::filesystem::path& inner);

}  // namespace nsa
