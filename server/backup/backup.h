// A copy of the state folder, made while the coordinator runs, and the way back. A backup is a
// folder (mode 0700) with
//
//   jobs.sqlite        the store as it was at one moment, without free pages
//   access, token, …   every other file of the state folder, at its path; logs/ and dumps/ with it
//   backup.json        {"format": 1, "version": "0.1.0", "revision": "…", "unix_nanos": …,
//                       "files": [{"path": "access", "bytes": 412, "sha256": "…"}, …]}
//
// It holds what the state folder holds, secrets too. Locks, sockets and what belongs to the local
// agent are not in it: they describe processes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa::server {

struct BackupSize {
  int64_t files = 0;  // without backup.json
  int64_t bytes = 0;
};

// Writes a backup of `state_dir` to `target`, which must not exist or be an empty folder. It is
// there whole or not at all. A coordinator may run meanwhile; what it commits after the copy of the
// store has begun is not in it. NotFound if there is no store; FailedPrecondition for a target that
// is taken or lies in `state_dir`; DataLoss if the store is damaged.
absl::StatusOr<BackupSize> BackUp(const std::filesystem::path& state_dir,
                                  const std::filesystem::path& target, absl::Time now);

struct Restored {
  BackupSize size;
  // Where the files are now that were in the state folder before; empty if there were none.
  std::filesystem::path replaced;
};

// Puts a backup in the place of what is in `state_dir`, which is created if it is missing. Every
// hash is compared before anything is changed: DataLoss for a file that is missing or differs,
// InvalidArgument for a folder that is no backup or was made by a later format. FailedPrecondition
// while a coordinator runs. After a crash in the middle it can be done again.
absl::StatusOr<Restored> Restore(const std::filesystem::path& backup,
                                 const std::filesystem::path& state_dir, absl::Time now);

}  // namespace nsa::server
