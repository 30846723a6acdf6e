// A lock file: an exclusive flock(2) that one process holds at a time. The file says who holds it,
// in one line of JSON:
//
//   {"pid": 4711, "start_ticks": 55, "boot_id": "…", "program": "nsa-worker", "host": "vm3",
//    "folder": "/var/lib/nsa/agent", "device": 2049, "inode": 131, "detail": "generation 2"}
//
// ReadIdentity() in common/run/process.h can read the holder's identity from this file. The kernel
// releases the lock when the process ends for any reason.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

class FileLock {
 public:
  // Holds no lock.
  FileLock() = default;

  // Creates the file with mode 0600 if it does not exist, and locks it. A symbolic link is not
  // followed. AlreadyExists while another process holds the lock; the message is only the holder,
  // e.g. "process 4711 (nsa-worker) on vm3, generation 2", and the caller adds what is locked and
  // what to do. Unimplemented, with what to do, on a file system without locks. `detail` is
  // additional text about the holder ("generation 2"); it may be empty.
  static absl::StatusOr<FileLock> Take(const std::filesystem::path& path,
                                       const std::string& detail = "");

  // The same for a file that is open for reading and writing. `path` is only for error messages.
  static absl::StatusOr<FileLock> Take(Fd file, const std::filesystem::path& path,
                                       const std::string& detail = "");

 private:
  explicit FileLock(Fd file) : file_(std::move(file)) {}
  Fd file_;
};

// Where a lock file was when it was last locked.
struct LockOrigin {
  std::filesystem::path folder;  // empty: there is no such file, or an earlier version wrote it
  bool copied = false;           // this is a copy of the file that was locked
};
LockOrigin OriginOfLock(const std::filesystem::path& path);

}  // namespace nsa
