// One coordinator per state folder.
#pragma once

#include <filesystem>

#include "absl/status/statusor.h"
#include "common/run/file_lock.h"

namespace nsa::server {

// Holds <state_dir>/coordinator.lock, and creates the folder (mode 0700) when it is missing.
// FailedPrecondition, naming the holder, when another process has the folder.
absl::StatusOr<FileLock> LockStateDir(const std::filesystem::path& state_dir);

}  // namespace nsa::server
