// The part of JobStore that keeps the file small.
//
// SQLite puts the pages of deleted rows on a list and uses them again, but gives none back by
// itself. The file is made with auto_vacuum=INCREMENTAL, so that the pages at its end can be moved
// into free ones, a few at a time. A file of an earlier version cannot; it is written anew at a
// start.
#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/store/job_store.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// Writing anew takes about a second for 100 MiB.
constexpr int64_t kLargestWrittenAnew = int64_t{512} << 20;
// Pages that are moved at a time, and for how long. Each looks for its place in the list of free
// pages, so in a large store a page may take a millisecond.
constexpr int kChunk = 16;
constexpr absl::Duration kShrinkTime = absl::Milliseconds(20);
// Not worth moving pages for.
constexpr int64_t kFewFreeBytes = 4 << 20;

}  // namespace

absl::Status JobStore::AddRequestTimes() {
  NSA_ASSIGN_OR_RETURN(
      const int64_t has,
      database_->QueryInt(
          "SELECT COUNT(*) FROM pragma_table_info('requests') WHERE name = 'unix_seconds'"));
  // A store without the table is damaged, which is found later.
  NSA_ASSIGN_OR_RETURN(const int64_t table,
                       database_->QueryInt("SELECT COUNT(*) FROM pragma_table_info('requests')"));
  if (has == 0 && table > 0) {
    // Rows of an earlier coordinator count as of now.
    NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
    NSA_RETURN_IF_ERROR(database_->Execute(
        absl::StrCat("ALTER TABLE requests ADD COLUMN unix_seconds INTEGER NOT NULL DEFAULT 0; "
                     "UPDATE requests SET unix_seconds = ",
                     absl::ToUnixSeconds(clock_.Wall()),
                     "; CREATE INDEX requests_by_time ON requests(unix_seconds);")));
    NSA_RETURN_IF_ERROR(transaction.Commit());
  }
  return absl::OkStatus();
}

absl::Status JobStore::MakeShrinkable() {
  NSA_ASSIGN_OR_RETURN(const int64_t mode, database_->QueryInt("PRAGMA auto_vacuum"));
  if (mode != 0) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const int64_t pages, database_->QueryInt("PRAGMA page_count"));
  NSA_ASSIGN_OR_RETURN(const int64_t page, database_->QueryInt("PRAGMA page_size"));
  if (pages * page > kLargestWrittenAnew) {
    spdlog::warn(
        "job store: {} was written by an earlier version and is too large to be converted at a "
        "start ({} MiB, at most {}), so its file will not shrink; back it up and restore it",
        database_->path().string(), pages * page >> 20, kLargestWrittenAnew >> 20);
    return absl::OkStatus();
  }
  return database_->Execute("PRAGMA auto_vacuum=INCREMENTAL; VACUUM;");
}

absl::StatusOr<bool> JobStore::Tidy(absl::Time now, int rows) {
  absl::StatusOr<bool> done;
  {
    MutexLock lock(&mutex_);
    done = TidyLocked(now, rows);
  }
  if (!done.ok()) ReportIfFailed(done.status(), "delete", "");
  return done;
}

absl::StatusOr<bool> JobStore::TidyLocked(absl::Time now, int rows) {
  NSA_ASSIGN_OR_RETURN(const int64_t requests,
                       database_->QueryInt("SELECT COUNT(*) FROM requests"));
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  NSA_ASSIGN_OR_RETURN(
      Statement old,
      database_->Prepare("DELETE FROM requests WHERE id IN (SELECT id FROM requests INDEXED BY "
                         "requests_by_time WHERE unix_seconds < ? ORDER BY unix_seconds LIMIT ?)"));
  NSA_RETURN_IF_ERROR(old.Bind(1, absl::ToUnixSeconds(now - kRequestsKept)).Bind(2, rows).Run());
  int64_t gone = database_->changes();
  if (const int64_t over = requests - gone - kMostRequests; over > 0 && gone < rows) {
    NSA_ASSIGN_OR_RETURN(Statement more,
                         database_->Prepare("DELETE FROM requests WHERE id IN (SELECT id FROM "
                                            "requests INDEXED BY requests_by_time ORDER BY "
                                            "unix_seconds LIMIT ?)"));
    NSA_RETURN_IF_ERROR(more.Bind(1, std::min<int64_t>(over, rows - gone)).Run());
    gone += database_->changes();
  }
  if (gone < rows) NSA_RETURN_IF_ERROR(gpu_time_.Forget(*database_, now));
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  return gone < rows;
}

absl::StatusOr<bool> JobStore::Shrink(int pages) {
  absl::StatusOr<bool> done;
  {
    MutexLock lock(&mutex_);
    done = ShrinkLocked(pages);
  }
  if (!done.ok()) ReportIfFailed(done.status(), "shrink", "");
  return done;
}

absl::StatusOr<bool> JobStore::ShrinkLocked(int pages) {
  NSA_ASSIGN_OR_RETURN(const int64_t mode, database_->QueryInt("PRAGMA auto_vacuum"));
  NSA_ASSIGN_OR_RETURN(const int64_t all, database_->QueryInt("PRAGMA page_count"));
  NSA_ASSIGN_OR_RETURN(const int64_t free, database_->QueryInt("PRAGMA freelist_count"));
  NSA_ASSIGN_OR_RETURN(const int64_t page, database_->QueryInt("PRAGMA page_size"));
  if (mode == 0 || free * page < kFewFreeBytes || free * 10 < all) return true;
  const absl::Duration began = clock_.Monotonic();
  NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database_.get()));
  for (int done = 0; done < pages; done += kChunk) {
    if (clock_.Monotonic() - began > kShrinkTime) break;
    NSA_RETURN_IF_ERROR(
        database_->Execute(absl::StrCat("PRAGMA incremental_vacuum(", kChunk, ")")));
  }
  NSA_RETURN_IF_ERROR(Commit(&transaction));
  return false;
}

absl::StatusOr<JobStore::Size> JobStore::SizeNow() const {
  Size size;
  std::filesystem::path folder;
  {
    MutexLock lock(&mutex_);
    folder = database_->path().parent_path();
    NSA_ASSIGN_OR_RETURN(const int64_t page, database_->QueryInt("PRAGMA page_size"));
    NSA_ASSIGN_OR_RETURN(const int64_t all, database_->QueryInt("PRAGMA page_count"));
    NSA_ASSIGN_OR_RETURN(const int64_t free, database_->QueryInt("PRAGMA freelist_count"));
    size = {.bytes = all * page, .free_bytes = free * page};
  }
  std::error_code error;
  const auto disk = std::filesystem::space(folder, error);
  if (error) return absl::InternalError(absl::StrCat("state folder: ", error.message()));
  size.disk_bytes = static_cast<int64_t>(disk.capacity);
  size.disk_free_bytes = static_cast<int64_t>(disk.available);
  return size;
}

}  // namespace nsa::server
