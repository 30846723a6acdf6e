// The jobs: a row of `jobs` and one of `progress` on disk for each, and all of them in memory as
// immutable snapshots, so that reading a job never touches the disk. It belongs to JobStore, which
// serialises its use and holds the transactions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/store/out_dirs.h"
#include "server/store/sqlite.h"
#include "server/store/sweep_index.h"

namespace nsa::server {

// A job as it was at some moment. Shared by the store and its readers.
using JobPtr = std::shared_ptr<const v1::StoredJob>;

// What Find() says of a job that there is not, or that does not exist for the caller.
absl::Status NoSuchJob(const std::string& id_or_name);

class JobTable {
 public:
  static constexpr char kSchema[] = R"(
  CREATE TABLE jobs(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
                    body BLOB NOT NULL);
  CREATE TABLE progress(job INTEGER PRIMARY KEY, body BLOB NOT NULL);
)";

  struct Entry {
    int64_t number = 0;  // in the order of submission, from 1; the other tables have it
    JobPtr job;
  };
  struct Jobs {
    std::vector<JobPtr> active;  // those that have not ended, oldest first
    std::vector<JobPtr> ended;   // newest first
    size_t count_ended = 0;      // of all that have
  };
  struct Page {
    std::vector<JobPtr> jobs;  // newest first
    std::string next_page_token;
  };
  // Which jobs to list; an empty member means all.
  struct Filter {
    std::vector<v1::Job::State> states;         // one of these
    std::map<std::string, std::string> labels;  // all of these
    std::string owner;
  };

  explicit JobTable(Database& database) : database_(database) {}

  // Reads all jobs into memory. DataLoss names one that is damaged.
  absl::Status Load();

  // Within a transaction of the caller's; Remember(), Drop() or Forget() follows once that is
  // committed. Insert() returns the job's number. Write() writes its progress, too.
  absl::StatusOr<int64_t> Insert(const v1::StoredJob& job);
  absl::Status Write(int64_t number, const v1::StoredJob& job);
  absl::Status WriteProgress(int64_t number, const v1::JobProgress& progress);
  absl::Status Erase(int64_t number);

  // A job is now as it was written.
  void Remember(int64_t number, JobPtr job);
  // It was marked as deleted, and cannot be found any more.
  void Drop(const std::string& id);
  // A deleted one has no rows left.
  void Forget(const std::string& id) { deleted_.erase(id); }

  // FailedPrecondition (kOutDirInUse) when the out_dir is that of another job that has not ended,
  // or lies in or around it.
  absl::Status CheckOutDir(const v1::StoredJob& stored) const;

  // As JobStore has them.
  absl::StatusOr<const Entry*> Find(const std::string& id_or_name, const std::string& owner = "",
                                    v1::JobUse use = v1::JOB_USE_UNSPECIFIED) const;
  int32_t Namesakes(const std::string& id_or_name, const std::string& owner) const;
  Jobs All(size_t most_ended) const;
  absl::StatusOr<Page> List(int32_t page_size, const std::string& page_token,
                            const Filter& filter) const;
  std::vector<JobPtr> EndedBefore(absl::Time when, size_t limit) const;

  // The job with this id; null if there is none, or with `owner` if it is another's.
  const Entry* ById(const std::string& id, const std::string& owner = "") const;

  const std::map<int64_t, JobPtr>& active() const { return active_; }  // by number: not ended
  const std::map<std::string, int64_t>& deleted() const { return deleted_; }  // id → number
  const std::map<v1::Job::State, int64_t>& counts() const { return counts_; }
  const SweepIndex& sweeps() const { return sweeps_; }

 private:
  // The jobs of this name, newest first; with `owner`, only those of that owner.
  std::vector<const Entry*> Named(const std::string& name, const std::string& owner) const;

  Database& database_;
  std::map<std::string, Entry> jobs_;                 // by id
  std::map<int64_t, JobPtr> numbers_;                 // by number
  std::map<std::string, std::set<int64_t>> by_name_;  // name → numbers
  std::map<int64_t, JobPtr> active_;
  OutDirs out_dirs_;  // of active jobs
  SweepIndex sweeps_;
  std::map<v1::Job::State, int64_t> counts_;  // jobs by state
  std::map<std::string, int64_t> deleted_;    // left to purge
};

}  // namespace nsa::server
