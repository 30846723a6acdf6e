// The table of events: what happened to each job, in one sequence. It belongs to JobStore, which
// serialises its use and holds the transactions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "nsa/v1/job_status.pb.h"
#include "server/store/sqlite.h"

namespace nsa::server {

class EventTable {
 public:
  static constexpr char kSchema[] = R"(
  CREATE TABLE events(sequence INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL,
                      body BLOB NOT NULL);
  CREATE INDEX events_by_job ON events(job);
)";
  // Deletes rows of the job with the number ?1, at most ?2.
  static constexpr char kPurge[] =
      "DELETE FROM events WHERE sequence IN "
      "(SELECT sequence FROM events INDEXED BY events_by_job WHERE job = ? LIMIT ?)";

  EventTable(Database& database, const Clock& clock) : database_(database), clock_(clock) {}

  // Within a transaction of the caller's. Fills in the job's id and state, and the time and the
  // generation of an event that has none.
  absl::Status Write(int64_t number, const v1::Job& job, std::vector<v1::JobEvent> events);

  // At most `limit` events after `after_sequence`, in order: those of the job with this number or,
  // if it is 0, of all jobs but those in `but` (id → number). Ends with the event that takes the
  // sum above `most_bytes`, whatever its size.
  absl::StatusOr<std::vector<v1::JobEvent>> Read(int64_t number,
                                                 const std::map<std::string, int64_t>& but,
                                                 int64_t after_sequence, int limit,
                                                 size_t most_bytes) const;

  // The newest sequence; 0: there is no event.
  absl::StatusOr<int64_t> Last() const;

 private:
  Database& database_;
  const Clock& clock_;
};

}  // namespace nsa::server
