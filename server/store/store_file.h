// The file jobs.sqlite as a whole: which tables it has, and how large it is.
//
// SQLite puts the pages of deleted rows on a list and uses them again, but gives none back by
// itself. The file is made with auto_vacuum=INCREMENTAL, so that the pages at its end can be moved
// into free ones, a few at a time.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "server/store/curve_point_table.h"
#include "server/store/request_table.h"
#include "server/store/sqlite.h"

namespace nsa::server {

// PRAGMA user_version of a store of this program.
inline constexpr int kSchemaVersion = 2;

// Sets how the file is written, and returns its version; 0: nothing is in it yet.
absl::StatusOr<int64_t> PrepareFile(Database& store);

// Makes the tables of a new store, adds those that an earlier version lacks, and checks that all
// are there and whole. FailedPrecondition when the version is newer, DataLoss when something is
// missing or damaged.
absl::Status Migrate(Database& store, int64_t version, RequestTable& requests,
                     CurvePointTable& curves);

// Makes a file of an earlier version, which cannot shrink, one that can. One that is too large to
// be written anew at a start stays as it is, with a warning.
absl::Status MakeShrinkable(Database& store);

// True when the file cannot shrink, or less than a tenth of it is free.
absl::StatusOr<bool> IsSmall(Database& store);

// Within a transaction of the caller's: gives at most `pages` free pages back to the file system,
// for about 20 ms.
absl::Status GiveBack(Database& store, int pages, const Clock& clock);

struct StoreSize {
  int64_t bytes = 0;       // of the file
  int64_t free_bytes = 0;  // of these, for rows to come
  // Of the file system that the store is on; free: for this user.
  int64_t disk_bytes = 0;
  int64_t disk_free_bytes = 0;
};
// Without what the file system says.
absl::StatusOr<StoreSize> SizeOf(Database& store);

}  // namespace nsa::server
