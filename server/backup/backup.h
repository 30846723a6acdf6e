// A copy of the state folder, made while the coordinator runs, and the way back. A backup is a
// folder (mode 0700) with
//
//   jobs.sqlite        the store as it was at one moment, without free pages
//   access, token, …   the coordinator's other files, at their paths in the state folder: access,
//                      token, cordons.pb, notices.pb, the audit logs, logs/ and dumps/
//   backup.json        {"format": 1, "version": "0.2.0", "revision": "…", "unix_nanos": …,
//                       "files": [{"path": "access", "bytes": 412, "sha256": "…"}, …]}
//
// It holds secrets, as the state folder does. Locks, sockets and what belongs to the local agent
// are not in it: they describe processes. Nor are files that are not the coordinator's: the state
// folder is also the home of its user, with a data cache and the passwords of a mail program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa::server {

struct BackupSize {
  int64_t files = 0;  // without backup.json
  int64_t bytes = 0;
};

// Writes a backup of `state_dir` to `target`, which must not exist or be an empty folder, and
// compares its hashes. It is there whole or not at all. A coordinator may run meanwhile; what it
// commits after the copy of the store has begun is not in it. NotFound if there is no store;
// FailedPrecondition for a target that is taken or lies in `state_dir`; DataLoss if the store or
// the copy is damaged.
absl::StatusOr<BackupSize> BackUp(const std::filesystem::path& state_dir,
                                  const std::filesystem::path& target, absl::Time now);

// Writes into `state_dir` that its newest backup was made at `time`: the file last-backup, with
// whole seconds since 1970. A backup does not have this file.
absl::Status NoteBackup(const std::filesystem::path& state_dir, absl::Time time);

// What was noted last; 1970 if nothing was, or it cannot be read.
absl::Time LastBackup(const std::filesystem::path& state_dir);

// Whether a folder has the manifest of a backup, whole or not.
bool IsBackup(const std::filesystem::path& folder);

struct Verified {
  std::string writer;  // version and revision of the coordinator that wrote it
  absl::Time time;     // when it was made
  BackupSize size;
};

// Compares every hash of a backup, and the version of its store. DataLoss for a file that is
// missing or differs, InvalidArgument and FailedPrecondition as for Restore().
absl::StatusOr<Verified> Verify(const std::filesystem::path& backup);

struct Restored {
  std::string writer;  // version and revision of the coordinator that wrote the backup
  BackupSize size;
  // Where the files are now that were in the state folder before; empty if there were none.
  std::filesystem::path replaced;
};

// Puts a backup in the place of the coordinator's files in `state_dir`; other files stay where they
// are. With `make_new` the folder may be one that has no file of a coordinator, and is created if
// it is missing; without it that is FailedPrecondition. Every hash is compared before anything is
// changed: DataLoss for a file that is missing or differs, InvalidArgument for a folder that is no
// backup or was made by a later format. FailedPrecondition while a coordinator runs, and for a
// store that is newer than this program. After a crash in the middle it can be done again. A folder
// in which no backup was noted gets the time of this one.
absl::StatusOr<Restored> Restore(const std::filesystem::path& backup,
                                 const std::filesystem::path& state_dir, bool make_new,
                                 absl::Time now);

}  // namespace nsa::server
