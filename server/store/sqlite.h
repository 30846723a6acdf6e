// RAII wrappers for SQLite: connection, prepared statement, transaction. Errors name the file. A
// connection and its statements may be used by one thread at a time only: callers hold a lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace nsa::server {

class Database;

// A prepared statement. Parameters are 1-based, columns 0-based.
class Statement {
 public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

  Statement& Bind(int index, int64_t value);
  Statement& Bind(int index, std::string_view value);      // text; copied
  Statement& BindBlob(int index, std::string_view value);  // copied

  // True when there is a row. False at the end; the statement is then reset and can be used again.
  absl::StatusOr<bool> Step();
  // Step() to the end, for statements without rows.
  absl::Status Run();
  void Reset();

  int64_t Int(int column) const;
  std::string Text(int column) const;
  std::string Blob(int column) const;

 private:
  friend class Database;
  Statement(const Database* database, sqlite3_stmt* statement)
      : database_(database), statement_(statement) {}
  const Database* database_;
  sqlite3_stmt* statement_;
};

// Whether an error of a Database means that the file system could not read or write the file.
bool IsIoError(const absl::Status& status);

class Database {
 public:
  // Opens the file, or creates it. DataLoss when it is not a database or is damaged.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::filesystem::path& path);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  // Executes statements without parameters or rows, separated by semicolons.
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<Statement> Prepare(std::string_view sql);
  // The first column of the first row of a query.
  absl::StatusOr<int64_t> QueryInt(std::string_view sql);
  absl::StatusOr<std::string> QueryText(std::string_view sql);

  int64_t last_insert_id() const;
  // Rows changed by the last statement.
  int64_t changes() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  friend class Statement;
  Database(std::filesystem::path path, sqlite3* handle) : path_(std::move(path)), handle_(handle) {}
  absl::Status Error(int code, std::string_view what) const;

  const std::filesystem::path path_;
  sqlite3* const handle_;
};

// Rolls back when destroyed without Commit().
class Transaction {
 public:
  static absl::StatusOr<Transaction> Begin(Database* database);
  Transaction(Transaction&& other) noexcept : database_(other.database_) {
    other.database_ = nullptr;
  }
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();

  // The changes are on disk when this returns OK.
  absl::Status Commit();

 private:
  explicit Transaction(Database* database) : database_(database) {}
  Database* database_;
};

}  // namespace nsa::server
