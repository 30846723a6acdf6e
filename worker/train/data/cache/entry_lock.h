// A lock of a file of the cache, by flock(2): the kernel releases it when the process ends for any
// reason. Unlike FileLock (common/run/file_lock.h) it writes nothing, so that it can be taken on a
// full disk too.
#pragma once

#include <filesystem>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa::train {

// Held until the object is destroyed. Move-only. Never waits.
class EntryLock {
 public:
  // Locks a file for this object alone, and creates it with mode 0600 if it does not exist.
  // AlreadyExists while another object holds a lock of the file, here or in another process.
  static absl::StatusOr<EntryLock> Take(const std::filesystem::path& path);

  // The same for a file that exists; else NotFound.
  static absl::StatusOr<EntryLock> TakeExisting(const std::filesystem::path& path);

  // Locks a file that exists together with others that do so. NotFound; AlreadyExists while another
  // object holds the lock alone.
  static absl::StatusOr<EntryLock> Share(const std::filesystem::path& path);

 private:
  static absl::StatusOr<EntryLock> Lock(const std::filesystem::path& path, int flags,
                                        int operation);
  explicit EntryLock(Fd file) : file_(std::move(file)) {}

  Fd file_;
};

}  // namespace nsa::train
