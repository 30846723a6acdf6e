#include "server/store/sqlite.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr char kIoErrorUrl[] = "nsa/sqlite-io-error";  // a payload of such a status

}  // namespace

bool IsIoError(const absl::Status& status) { return status.GetPayload(kIoErrorUrl).has_value(); }

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_), statement_(std::exchange(other.statement_, nullptr)) {}

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(database_, other.database_);
  std::swap(statement_, other.statement_);
  return *this;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int index, int64_t value) {
  sqlite3_bind_int64(statement_, index, value);
  return *this;
}

Statement& Statement::Bind(int index, std::string_view value) {
  sqlite3_bind_text64(statement_, index, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  return *this;
}

Statement& Statement::BindBlob(int index, std::string_view value) {
  sqlite3_bind_blob64(statement_, index, value.data(), value.size(), SQLITE_TRANSIENT);
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) {
    const absl::Status error = database_->Error(code, sqlite3_sql(statement_));
    Reset();
    return error;
  }
  Reset();
  return false;
}

absl::Status Statement::Run() {
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool more, Step());
    if (!more) return absl::OkStatus();
  }
}

void Statement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

int64_t Statement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::Text(int column) const { return Blob(column); }

std::string Statement::Blob(int column) const {
  // The length is read after the pointer, because reading the value may convert it.
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? "" : std::string(static_cast<const char*>(data), size);
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::filesystem::path& path) {
  sqlite3* handle = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &handle,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  // The handle exists even when opening failed, and must be closed.
  std::unique_ptr<Database> database(new Database(path, handle));
  if (code != SQLITE_OK) return database->Error(code, "open");
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, 5'000);
  return database;
}

Database::~Database() {
  if (sqlite3_close(handle_) != SQLITE_OK)
    spdlog::error("{}: closed while statements were in use", path_.string());
}

absl::Status Database::Execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql);
}

absl::StatusOr<Statement> Database::Prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(handle_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return Error(code, sql);
  return Statement(this, statement);
}

absl::StatusOr<int64_t> Database::QueryInt(std::string_view sql) {
  NSA_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  NSA_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

absl::StatusOr<std::string> Database::QueryText(std::string_view sql) {
  NSA_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  NSA_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Text(0) : "";
}

int64_t Database::last_insert_id() const { return sqlite3_last_insert_rowid(handle_); }

int64_t Database::changes() const { return sqlite3_changes64(handle_); }

absl::Status Database::Error(int code, std::string_view what) const {
  const std::string message =
      absl::StrCat(path_.string(), ": ", sqlite3_errstr(code), " (", sqlite3_errmsg(handle_),
                   "; in: ", absl::string_view(what.data(), what.size()), ")");
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(message);
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return absl::PermissionDeniedError(message);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(message);
    case SQLITE_IOERR: {
      absl::Status error = absl::InternalError(message);
      error.SetPayload(kIoErrorUrl, absl::Cord());
      return error;
    }
    default:
      return absl::InternalError(message);
  }
}

absl::StatusOr<Transaction> Transaction::Begin(Database* database) {
  NSA_RETURN_IF_ERROR(database->Execute("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_ == nullptr) return;
  const absl::Status status = database_->Execute("ROLLBACK");
  // After some errors (e.g. a full disk) SQLite has already rolled back, and ROLLBACK fails.
  if (!status.ok()) spdlog::debug("{}", std::string(status.message()));
}

absl::Status Transaction::Commit() {
  NSA_RETURN_IF_ERROR(database_->Execute("COMMIT"));
  database_ = nullptr;
  return absl::OkStatus();
}

}  // namespace nsa::server
