// Folders that survive power loss. A folder's fsync makes the names in it durable; that of a file
// does nothing for its name.
#pragma once

#include <filesystem>

#include "absl/status/status.h"

namespace nsa {

// Makes the names in a folder durable: what was created, renamed or removed there.
absl::Status SyncFolder(const std::filesystem::path& folder);

// Makes a folder, and those above it that do not exist, and makes all their names durable, whoever
// made them: up to the first one that this user cannot write to, and so has made nothing in.
absl::Status MakeDurableFolder(const std::filesystem::path& path);

}  // namespace nsa
