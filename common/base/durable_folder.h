// Folders that survive a power loss. fsync on a folder makes the names in it durable; fsync on a
// file does not make the file's name durable.
#pragma once

#include <filesystem>

#include "absl/status/status.h"

namespace nsa {

// Makes every creation, renaming and removal in a folder durable, with fsync.
absl::Status SyncFolder(const std::filesystem::path& folder);

// Creates a folder and its missing parents, and makes their names durable, also those of parents
// that existed before. It syncs the parents from the innermost outwards and stops at the first one
// that this user cannot read and write; this user cannot have created anything there.
absl::Status MakeDurableFolder(const std::filesystem::path& path);

}  // namespace nsa
