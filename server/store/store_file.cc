#include "server/store/store_file.h"

#include <memory>
#include <set>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "server/store/event_table.h"
#include "server/store/gpu_time_table.h"
#include "server/store/job_table.h"
#include "server/store/record_table.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// Tables of one row each, whose bodies are a StoredIdentity and a StoredClock.
constexpr char kIdentitySchema[] =
    "CREATE TABLE IF NOT EXISTS identity(row INTEGER PRIMARY KEY CHECK(row = 1), body BLOB NOT "
    "NULL)";
constexpr char kClockSchema[] =
    "CREATE TABLE IF NOT EXISTS clock(row INTEGER PRIMARY KEY CHECK(row = 1), body BLOB NOT NULL)";

constexpr const char* kFirstSchemas[] = {JobTable::kSchema, EventTable::kSchema,
                                         RequestTable::kSchema, RecordTable::kSchema,
                                         CurvePointTable::kColumnsSchema};
// Added to version 1 later; a coordinator without them leaves them alone.
constexpr const char* kLaterSchemas[] = {CurvePointTable::kSchema, kIdentitySchema, kClockSchema,
                                         GpuTimeTable::kSchema};

// Writing anew takes about a second for 100 MiB.
constexpr int64_t kLargestWrittenAnew = int64_t{512} << 20;
// Pages that are moved at a time, and for how long. Each looks for its place in the list of free
// pages, so in a large store a page may take a millisecond.
constexpr int kChunk = 16;
constexpr absl::Duration kShrinkTime = absl::Milliseconds(20);
// Not worth moving pages for.
constexpr int64_t kFewFreeBytes = 4 << 20;

// Each column of each table, and each index.
absl::StatusOr<std::set<std::string>> PartsOf(Database& database) {
  NSA_ASSIGN_OR_RETURN(
      Statement rows,
      database.Prepare("SELECT 'the column ' || m.name || '.' || c.name || ' ' || c.type || "
                       "CASE WHEN c.pk THEN ' of the key' ELSE '' END "
                       "FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' "
                       "UNION SELECT 'the index ' || name || ' of ' || tbl_name "
                       "FROM sqlite_master WHERE type = 'index'"));
  std::set<std::string> parts;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return parts;
    parts.insert(rows.Text(0));
  }
}

absl::Status MakeTables(Database& store, std::span<const char* const> schemas) {
  for (const char* schema : schemas) NSA_RETURN_IF_ERROR(store.Execute(schema));
  return absl::OkStatus();
}

// DataLoss unless the store has all that a new one has; more is of a newer program.
absl::Status CheckSchema(Database& store) {
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<Database> fresh, Database::Open(":memory:"));
  NSA_RETURN_IF_ERROR(MakeTables(*fresh, kFirstSchemas));
  NSA_RETURN_IF_ERROR(MakeTables(*fresh, kLaterSchemas));
  NSA_ASSIGN_OR_RETURN(const std::set<std::string> wanted, PartsOf(*fresh));
  NSA_ASSIGN_OR_RETURN(const std::set<std::string> parts, PartsOf(store));
  for (const std::string& part : wanted) {
    if (!parts.contains(part)) return absl::DataLossError(absl::StrCat(part, " is missing"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> PrepareFile(Database& store) {
  NSA_ASSIGN_OR_RETURN(const int64_t pages, store.QueryInt("PRAGMA page_count"));
  if (pages == 0) NSA_RETURN_IF_ERROR(store.Execute("PRAGMA auto_vacuum=INCREMENTAL"));
  NSA_RETURN_IF_ERROR(store.Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"));
  return store.QueryInt("PRAGMA user_version");
}

absl::Status Migrate(Database& store, int64_t version, RequestTable& requests,
                     CurvePointTable& curves) {
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "job store: %s has version %d (at most %d); start the newer nsa-coordinator that wrote it",
        store.path().string(), version, kSchemaVersion));
  }
  if (version < 0) return absl::DataLossError(absl::StrCat("version ", version));
  if (version == 0) {
    NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(&store));
    NSA_RETURN_IF_ERROR(MakeTables(store, kFirstSchemas));
    NSA_RETURN_IF_ERROR(store.Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion)));
    NSA_RETURN_IF_ERROR(transaction.Commit());
  }
  NSA_RETURN_IF_ERROR(requests.AddTimes());
  NSA_RETURN_IF_ERROR(MakeTables(store, kLaterSchemas));
  if (version == 1) {
    NSA_ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(&store));
    NSA_RETURN_IF_ERROR(curves.AddNames());
    NSA_RETURN_IF_ERROR(store.Execute("PRAGMA user_version=2"));
    NSA_RETURN_IF_ERROR(transaction.Commit());
  }
  NSA_RETURN_IF_ERROR(CheckSchema(store));
  // Records are checked when they are read: checking them all would take long in a large store.
  for (const char* table : {"jobs", "progress", "events", "requests", "curve_columns"}) {
    NSA_ASSIGN_OR_RETURN(const std::string result,
                         store.QueryText(absl::StrCat("PRAGMA quick_check(", table, ")")));
    if (result != "ok") return absl::DataLossError(result);
  }
  return absl::OkStatus();
}

absl::Status MakeShrinkable(Database& store) {
  NSA_ASSIGN_OR_RETURN(const int64_t mode, store.QueryInt("PRAGMA auto_vacuum"));
  if (mode != 0) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const StoreSize size, SizeOf(store));
  if (size.bytes > kLargestWrittenAnew) {
    spdlog::warn(
        "job store: {} was written by an earlier version and is too large to be converted at a "
        "start ({} MiB, at most {}), so its file will not shrink; back it up and restore it",
        store.path().string(), size.bytes >> 20, kLargestWrittenAnew >> 20);
    return absl::OkStatus();
  }
  return store.Execute("PRAGMA auto_vacuum=INCREMENTAL; VACUUM;");
}

absl::StatusOr<bool> IsSmall(Database& store) {
  NSA_ASSIGN_OR_RETURN(const int64_t mode, store.QueryInt("PRAGMA auto_vacuum"));
  NSA_ASSIGN_OR_RETURN(const StoreSize size, SizeOf(store));
  return mode == 0 || size.free_bytes < kFewFreeBytes || size.free_bytes * 10 < size.bytes;
}

absl::Status GiveBack(Database& store, int pages, const Clock& clock) {
  const absl::Duration began = clock.Monotonic();
  for (int done = 0; done < pages; done += kChunk) {
    if (clock.Monotonic() - began > kShrinkTime) break;
    NSA_RETURN_IF_ERROR(store.Execute(absl::StrCat("PRAGMA incremental_vacuum(", kChunk, ")")));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoreSize> SizeOf(Database& store) {
  NSA_ASSIGN_OR_RETURN(const int64_t page, store.QueryInt("PRAGMA page_size"));
  NSA_ASSIGN_OR_RETURN(const int64_t all, store.QueryInt("PRAGMA page_count"));
  NSA_ASSIGN_OR_RETURN(const int64_t free, store.QueryInt("PRAGMA freelist_count"));
  return StoreSize{.bytes = all * page, .free_bytes = free * page};
}

}  // namespace nsa::server
