// The table of request ids, so that a repeated submit, resume or delete takes effect once. It
// belongs to JobStore, which serialises its use and holds the transactions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "server/store/sqlite.h"

namespace nsa::server {

class RequestTable {
 public:
  // `unix_seconds` and its index were added to version 1 later (AddTimes()).
  static constexpr char kSchema[] = R"(
  CREATE TABLE requests(id TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, job TEXT NOT NULL,
                        unix_seconds INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
  CREATE INDEX requests_by_time ON requests(unix_seconds);
)";

  // Ids are kept for as long, and at most so many of them.
  static constexpr absl::Duration kKept = absl::Hours(24 * 30);
  static constexpr int64_t kMost = 200'000;

  RequestTable(Database& database, const Clock& clock) : database_(database), clock_(clock) {}

  // Adds the times to the table of an earlier coordinator, whose rows count as of now.
  absl::Status AddTimes();

  // The id of the job that a request was about; empty when the request is not known or has no id.
  // AlreadyExists when it is known with another fingerprint.
  absl::StatusOr<std::string> Find(const std::string& id, const std::string& fingerprint) const;

  // Within a transaction of the caller's. A request without an id is not kept.
  absl::Status Write(const std::string& id, const std::string& fingerprint,
                     const std::string& job_id);

  // Within a transaction of the caller's: forgets at most `rows` ids, those that are older than
  // kKept at `now` and the oldest of more than kMost. Returns how many it were.
  absl::StatusOr<int64_t> Forget(absl::Time now, int rows);

 private:
  Database& database_;
  const Clock& clock_;
};

}  // namespace nsa::server
