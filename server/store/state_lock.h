// The lock that keeps a second coordinator out of a state folder.
#pragma once

#include <filesystem>

#include "absl/status/statusor.h"
#include "common/run/file_lock.h"

namespace nsa::server {

// Name of the lock file; ReadIdentity() reads its holder.
inline constexpr char kStateLockName[] = "coordinator.lock";

// Takes <state_dir>/coordinator.lock. Creates the folder (mode 0700) when it is missing.
// FailedPrecondition, naming the holder, when another process holds the lock.
absl::StatusOr<FileLock> LockStateDir(const std::filesystem::path& state_dir);

}  // namespace nsa::server
