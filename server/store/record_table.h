// The table of the workers' records, and where each rank's journal continues. It belongs to
// JobStore, which serialises its use and holds the transactions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"
#include "server/store/sqlite.h"

namespace nsa::server {

// What is stored of the journal of one rank in one generation.
struct RankJournal {
  // The next record of the journal.
  void Add(const v1::WorkerRecord& record);

  int64_t next_sequence = 1;
  int64_t first_step = 0;                      // steps done when it began
  std::optional<v1::WorkerFinished> finished;  // how it ended
  int64_t finished_unix_nanos = 0;
  // Write time of the last checkpoint; 0: not known. Rank 0 of the current generation knows that of
  // an earlier generation, too.
  double last_checkpoint_seconds = 0;
};

// InvalidArgument for a rank or a generation that the job never had.
absl::Status CheckPlace(const v1::ReportRecordsRequest& request, const v1::Job& job);

// The records that continue the journal at `next`, without those that are already stored; each
// within its limits, with what a job of this kind can have.
std::vector<v1::WorkerRecord> FreshRecords(const v1::ReportRecordsRequest& request,
                                           const v1::JobSpec& spec, int64_t next);

class RecordTable {
 public:
  static constexpr char kSchema[] = R"(
  CREATE TABLE records(position INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL,
                       generation INTEGER NOT NULL, rank INTEGER NOT NULL,
                       sequence INTEGER NOT NULL, body BLOB NOT NULL,
                       UNIQUE(job, generation, rank, sequence));
  CREATE INDEX records_by_job ON records(job);
)";
  // Deletes rows of the job with the number ?1, at most ?2.
  static constexpr char kPurge[] =
      "DELETE FROM records WHERE position IN "
      "(SELECT position FROM records INDEXED BY records_by_job WHERE job = ? LIMIT ?)";

  explicit RecordTable(Database& database) : database_(database) {}

  // Read once, then kept in memory until ForgetJournals(). The caller adds the records that it
  // writes, once they are committed. Valid until the next call.
  absl::StatusOr<RankJournal*> Journal(int64_t number, const v1::Job& job, int64_t generation,
                                       int32_t rank);
  void ForgetJournals(int64_t number) { journals_.erase(number); }

  // Within a transaction of the caller's: adds FreshRecords(), at least one, and deletes the steps
  // of this journal that are older than its newest 20,000 records.
  absl::Status Write(int64_t number, const v1::ReportRecordsRequest& where,
                     const std::vector<v1::WorkerRecord>& fresh);

  // As JobStore has them.
  absl::StatusOr<std::vector<v1::WatchRecordsResponse>> Read(int64_t number, int32_t rank,
                                                             int64_t after_position, int limit,
                                                             size_t most_bytes) const;
  absl::StatusOr<int64_t> TailPosition(int64_t number, int32_t rank, int count) const;

  // Calls `visit` with each of the newest `count` records of rank 0 and its generation, in order,
  // up to the first error. Damaged records are left out; Read() reports them.
  using Visit = std::function<absl::Status(int64_t generation, const v1::WorkerRecord& record)>;
  absl::Status VisitNewest(int64_t number, int count, const Visit& visit) const;

 private:
  absl::Status DeleteOldSteps(int64_t number, const v1::ReportRecordsRequest& where,
                              const std::vector<v1::WorkerRecord>& fresh);
  absl::StatusOr<RankJournal> ReadJournal(int64_t number, int64_t generation, int32_t rank) const;
  absl::StatusOr<double> LastCheckpointSeconds(int64_t number) const;

  Database& database_;
  // By number of the job, then by generation and rank. Of active jobs.
  std::map<int64_t, std::map<std::pair<int64_t, int32_t>, RankJournal>> journals_;
};

}  // namespace nsa::server
