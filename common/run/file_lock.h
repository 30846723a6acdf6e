// A file that one process at a time holds: an exclusive flock(2), and in the file, as one line of
// JSON, who holds it:
//
//   {"pid": 4711, "start_ticks": 55, "boot_id": "…", "program": "nsa-worker", "host": "vm3",
//    "detail": "generation 2"}
//
// common/run/process.h reads the same file as the holder's identity. The kernel releases the lock
// when the process ends, however it ends.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

class FileLock {
 public:
  // None.
  FileLock() = default;

  // Creates the file with mode 0600 where it is absent, and locks it; a symbolic link is not
  // followed. AlreadyExists while another process holds it: the message is the holder, e.g.
  // "process 4711 (nsa-worker) on vm3, generation 2", for the caller to say what it holds and what
  // to do. `detail` is what else the holder wants to be known by.
  static absl::StatusOr<FileLock> Take(const std::filesystem::path& path,
                                       const std::string& detail = "");

  // The same for a file that is open for reading and writing; `path` is for messages.
  static absl::StatusOr<FileLock> Take(Fd file, const std::filesystem::path& path,
                                       const std::string& detail = "");

 private:
  explicit FileLock(Fd file) : file_(std::move(file)) {}
  Fd file_;
};

}  // namespace nsa
