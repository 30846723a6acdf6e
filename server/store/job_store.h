// Stores what must survive a restart: jobs, their events, the workers' records, request ids. The
// file is <state_dir>/jobs.sqlite (SQLite, WAL, synchronous=FULL). Each change is one transaction
// and is on disk when the call returns OK. Every body carries an XXH3-64 checksum, so a flipped bit
// is noticed when the body is read.
//
// Each table has a class of its own (job_table.h, event_table.h, …), which does the SQL. This one
// has the lock, which is held while a transaction is committed and serialises all changes, and the
// transactions, which keep the tables in step. Reading a job never touches the disk. No two jobs
// that have not ended share an out_dir or have one inside the other's. Thread-safe. Observers are
// called without the lock. Only one process may have a state folder open (state_lock.h).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/store/curve_point_table.h"
#include "server/store/event_table.h"
#include "server/store/gpu_time_table.h"
#include "server/store/job_table.h"
#include "server/store/record_table.h"
#include "server/store/request_table.h"
#include "server/store/sqlite.h"
#include "server/store/store_file.h"

namespace nsa::server {

// Who deleted a job: a user, or retention after job_retention_days.
enum class DeletedBy { kUser, kRetention };

class JobStore {
 public:
  struct Observer {
    std::function<void(const std::string& job_id)> changed;  // job, events or records
    // A job was submitted (from UNSPECIFIED) or changed its state.
    std::function<void(v1::Job::State from, const v1::StoredJob& job)> moved;
    std::function<void(const v1::StoredJob& job, DeletedBy by)> deleted;
    std::function<void(double seconds)> committed;
    std::function<void(const std::string& operation, const absl::Status& status)> failed;
  };

  static constexpr char kFileName[] = "jobs.sqlite";  // in the state folder

  // Creates the file in a new state folder. DataLoss when it is damaged or unreadable, or lost from
  // a folder that had one (lost_store.h); FailedPrecondition when a newer version wrote it;
  // Unavailable when another program has it locked for five seconds. The errors name the file and
  // the remedy.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::filesystem::path& state_dir,
                                                        const Clock& clock, Observer observer);

  // Random, made with the store and the same for as long as it exists: a backup has the same one. A
  // store of an earlier version gets it when it is opened.
  const std::string& id() const { return id_; }

  // Makes an empty store in a folder that has lost its own. FailedPrecondition if it has one.
  static absl::Status MakeNew(const std::filesystem::path& state_dir, const Clock& clock);

  // The clock whose time the store's entries have.
  const Clock& clock() const { return clock_; }

  // Stores a new job and its first event. FailedPrecondition when its out_dir is in use, or when it
  // does not fit the other jobs of its sweep (kSweepMismatch). When the
  // request id is known: returns the job that it created if the fingerprint is the same, else
  // AlreadyExists; NotFound when that job has been deleted.
  struct Inserted {
    JobPtr job;
    bool created = false;
  };
  absl::StatusOr<Inserted> Insert(v1::StoredJob job, const std::string& request_id,
                                  const std::string& fingerprint, v1::JobEvent event);

  // The job that a request id created. Null when the id is not known, AlreadyExists when the
  // fingerprint differs, NotFound when the job has been deleted.
  absl::StatusOr<JobPtr> FindRequest(const std::string& request_id,
                                     const std::string& fingerprint) const;

  // The job with this id, else the one that this name means for `use` (job_status.proto), else
  // NotFound. InvalidArgument (kAmbiguousName) when the name can mean several. With `owner`, only
  // among the jobs of that owner: others do not exist for the caller.
  absl::StatusOr<JobPtr> Find(const std::string& id_or_name, const std::string& owner = "",
                              v1::JobUse use = v1::JOB_USE_UNSPECIFIED) const;

  // How many other jobs have the name of a job that was found by it; with `owner`, of that owner.
  int32_t Namesakes(const std::string& id_or_name, const std::string& owner = "") const;

  // Active jobs and at most `most_ended` others, all of the same moment. Copies pointers only.
  using Jobs = JobTable::Jobs;
  Jobs All(size_t most_ended) const {
    MutexLock lock(&mutex_);
    return jobs_.All(most_ended);
  }

  // Jobs that have not ended, oldest first.
  std::vector<JobPtr> Active() const { return All(0).active; }

  // The jobs of every halved sweep (SweepSpec.halve_at) with a job that has ended and was not
  // dropped; a sweep's jobs by number. Sweeps of different owners differ.
  std::vector<std::vector<JobPtr>> HalvedSweeps() const {
    MutexLock lock(&mutex_);
    return jobs_.sweeps().Halved();
  }

  // Number of jobs by state.
  std::map<v1::Job::State, int64_t> CountByState() const {
    MutexLock lock(&mutex_);
    return jobs_.counts();
  }

  using Page = JobTable::Page;
  using Filter = JobTable::Filter;
  // Jobs, newest first. `page_size` 0 means 100; more than 1,000 means 1,000. InvalidArgument for a
  // negative size and for a token that does not come from an earlier page.
  absl::StatusOr<Page> List(int32_t page_size, const std::string& page_token,
                            const Filter& filter) const;

  // A client's request that may arrive twice. An empty id is never recognised again.
  struct Request {
    std::string id;
    std::string fingerprint;  // differs between requests that do not ask for the same
  };

  // Reads, changes and writes a job atomically. `change` edits the job and adds events (sequence,
  // time, job id, state and generation are filled in). If it fails, nothing is changed and its
  // error is returned. FailedPrecondition when a job that had ended would become active with an
  // out_dir that is in use. When the request is known nothing is changed: returns the job as it is
  // now if the fingerprint is the same, else AlreadyExists; NotFound when it has been deleted.
  using Change = std::function<absl::Status(v1::StoredJob* job, std::vector<v1::JobEvent>* events)>;
  absl::StatusOr<JobPtr> Update(const std::string& job_id, const Change& change,
                                const Request& request = {});

  // The wall clock was set while a coordinator ran, or between two of one start of the machine:
  // moves the times from which durations of jobs that have not ended are counted (when a job
  // entered its state, when it was queued, restarts of the last 24 hours) with the clock, in one
  // transaction. `now`: the clocks as they are. Times of the last `gap` may be of the new clock
  // already and stay. Returns by how much the clock was set; zero if it was not, or if that cannot
  // be known because the machine was started again.
  absl::StatusOr<absl::Duration> FollowClock(const v1::StoredClock& now, absl::Duration gap);

  // How long ranks of the owner's jobs ran on GPUs, as of the last change of each job; deleted jobs
  // count. For rule/gpu_time.h.
  GpuHours GpuHoursOf(const std::string& owner) const {
    MutexLock lock(&mutex_);
    return gpu_time_.Of(owner);
  }
  // Whose jobs did within the longest window.
  std::vector<std::string> GpuOwners() const {
    MutexLock lock(&mutex_);
    return gpu_time_.Owners();
  }

  // Deletes a job that has ended: from then on it cannot be found, also after a restart, and its
  // name is free. This is one small transaction; Purge() and Forget() remove the rows later.
  // NotFound for an unknown job, FailedPrecondition for one that has not ended. A request id that
  // is known gets the same answer again if it was for the same `id_or_name`, else AlreadyExists.
  // `owner` as in Find(). With `unchanged`, only while the job is still that snapshot, else
  // Aborted.
  struct Deleted {
    std::string job_id;
    JobPtr job;  // as it was before; null when the request id was known
  };
  absl::StatusOr<Deleted> Delete(const std::string& id_or_name, DeletedBy by,
                                 const std::string& request_id, const std::string& owner = "",
                                 const JobPtr& unchanged = nullptr);

  // Jobs that ended before `when`, the earliest first; at most `limit`.
  std::vector<JobPtr> EndedBefore(absl::Time when, size_t limit) const;

  // The id of a deleted job that still has rows and is not in `but`. Empty: none.
  std::string NextToPurge(const std::set<std::string>& but = {}) const;

  // Reports that files of a deleted job could not be removed. Counted as a failed delete.
  void ReportNotRemoved(const std::string& job_id, const absl::Status& status) const;

  // Removes events and records of a deleted job, at most `rows` in all, in one transaction. Returns
  // true when none are left.
  absl::StatusOr<bool> Purge(const std::string& job_id, int rows);

  // Forgets, at most `rows` in one transaction, request ids that are too old or too many
  // (request_table.h), and GPU time that no quota can reach. True when nothing is left.
  absl::StatusOr<bool> Tidy(absl::Time now, int rows);

  // Gives at most `pages` free pages back to the file system, in one transaction that takes about
  // 20 ms; the file gets shorter. Does nothing while less than a tenth of the file is free. True
  // when there is nothing to do.
  absl::StatusOr<bool> Shrink(int pages);

  using Size = StoreSize;
  absl::StatusOr<Size> SizeNow() const;

  // Removes a deleted job's own row. Call it once Purge() has returned true.
  absl::Status Forget(const std::string& job_id);

  // At most `limit` events after `after_sequence`, in order: those of one job or, with an empty id,
  // of all jobs. Ends with the event that takes the sum above `most_bytes`, whatever its size.
  absl::StatusOr<std::vector<v1::JobEvent>> Events(const std::string& job_id,
                                                   int64_t after_sequence, int limit,
                                                   size_t most_bytes = limits::kPageBytes) const;

  // The sequence of the newest event of any job; 0: there is none.
  absl::StatusOr<int64_t> LastEvent() const;

  // Appends a rank's records. Records that are already stored are skipped; after a gap nothing is
  // stored. In the same transaction, worker events become job events, and records of rank 0 of the
  // current generation update the job's progress. NotFound for an unknown job, InvalidArgument for
  // a rank or generation that it never had. `gpus`, as their agents last measured the GPUs of the
  // job, become a point of its curve at the last of these steps.
  struct Appended {
    int64_t next_sequence = 1;
    std::vector<v1::WorkerRecord> fresh;  // the records that were stored now
    bool current = false;                 // they are of the job's current generation
    JobPtr job;                           // the job after the change
  };
  absl::StatusOr<Appended> AppendRecords(const v1::ReportRecordsRequest& request,
                                         const std::vector<v1::GpuInfo>& gpus = {});

  // At most `limit` records of a job after a position, in order, of one rank or (-1) of all; fewer
  // when they have more than `most_bytes`, as above.
  absl::StatusOr<std::vector<v1::WatchRecordsResponse>> Records(
      const std::string& job_id, int32_t rank, int64_t after_position, int limit,
      size_t most_bytes = limits::kPageBytes) const;

  // The position that the last `count` records follow.
  absl::StatusOr<int64_t> TailPosition(const std::string& job_id, int32_t rank, int count) const;

  absl::StatusOr<RankJournal> Journal(const std::string& job_id, int64_t generation,
                                      int32_t rank) const;

  // The buckets (kSteps, kLayers or kGpus) of rank 0 that begin at `from_step` or later, in order.
  // They span the whole job, whatever its length: at most kStepBuckets and kLayerBuckets, which
  // takes 5 ms to read. Repeated steps appear once. The records of steps themselves are kept for
  // the last 20,000 records of each rank and start. NotFound.
  absl::StatusOr<std::vector<v1::CurveBucket>> Buckets(const std::string& job_id, CurveKind kind,
                                                       int64_t from_step);
  // The records of rank 0 of one kind (kEval, kCheckpoint or kStart), in order of step. NotFound.
  absl::StatusOr<std::vector<v1::WorkerRecord>> Marks(const std::string& job_id, CurveKind kind);

  using Samples = CurvePointTable::Samples;
  // Those of the newest validation at or before `step`; NotFound.
  absl::StatusOr<Samples> SamplesAt(const std::string& job_id, int64_t step);

 private:
  using Entry = JobTable::Entry;

  JobStore(std::unique_ptr<Database> database, const Clock& clock, Observer observer);

  static absl::StatusOr<std::unique_ptr<JobStore>> OpenIn(const std::filesystem::path& state_dir,
                                                          const Clock& clock, Observer observer,
                                                          bool make_new);
  absl::Status Load(int64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Identify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<JobPtr> FindRequestLocked(const std::string& request_id,
                                           const std::string& fingerprint) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Inserted> InsertLocked(v1::StoredJob job, const std::string& request_id,
                                        const std::string& fingerprint, v1::JobEvent event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<JobPtr> UpdateLocked(const std::string& job_id, const Change& change,
                                      const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<absl::Duration> FollowClockLocked(const v1::StoredClock& now, absl::Duration gap)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Appended> AppendLocked(const v1::ReportRecordsRequest& request,
                                        const std::vector<v1::GpuInfo>& gpus)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Deleted> DeleteLocked(const std::string& id_or_name, const std::string& request_id,
                                       const std::string& owner, const JobPtr& unchanged)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> PurgeLocked(const std::string& job_id, int rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ForgetLocked(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> TidyLocked(absl::Time now, int rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> ShrinkLocked(int pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The number of a job, whose curves can be read from now on.
  absl::StatusOr<int64_t> DrawnNumberOf(const std::string& job_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remember(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetEnds(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Commit(Transaction* transaction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportIfFailed(const absl::Status& status, const std::string& operation,
                      const std::string& job_id) const;

  const Clock& clock_;
  const Observer observer_;
  mutable Mutex mutex_;
  const std::unique_ptr<Database> database_ ABSL_PT_GUARDED_BY(mutex_);
  std::string id_;  // set by Open()
  JobTable jobs_ ABSL_GUARDED_BY(mutex_);
  EventTable events_ ABSL_GUARDED_BY(mutex_);
  RequestTable requests_ ABSL_GUARDED_BY(mutex_);
  mutable RecordTable records_ ABSL_GUARDED_BY(mutex_);  // reading a journal keeps it in memory
  CurvePointTable curves_ ABSL_GUARDED_BY(mutex_);
  GpuTimeTable gpu_time_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
