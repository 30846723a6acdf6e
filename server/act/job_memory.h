// What the reconciler remembers of jobs between two ticks. Kept in memory only: after a restart of
// the coordinator it is built up again.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/gang.h"
#include "server/decide/hang_policy.h"
#include "server/decide/lifecycle.h"
#include "server/decide/restart_policy.h"

namespace nsa::server {

// Thread-safe; the lock means "one job's entry is being changed".
class JobMemory {
 public:
  // The fields that decide what agents are sent. When one changes, that has to be sent again.
  struct Situation {
    State state = v1::Job::STATE_UNSPECIFIED;
    int64_t generation = 0;
    bool gang_ending = false;
    bool restart_decided = false;
    int32_t restarts = 0;
    int32_t refusals = 0;
    bool operator==(const Situation&) const = default;
  };

  struct Entry {
    Situation situation;
    absl::Duration told;  // monotonic: when the situation was first seen
    HangState hang;
    absl::Duration last_checkpoint;  // how long the slowest checkpoint so far took
    bool checking = false;           // preflight is running on the executor
    Refusals refusals;
    std::set<std::string> told_of_gpus;  // faults of GPUs that have an event
  };

  // Returns the job's entry. If its situation has changed since the last call, `told` becomes `now`
  // and a suspected hang is forgotten.
  Entry Observe(const v1::StoredJob& job, absl::Duration now);

  // The job is suspected to hang since `now`, until EndSuspicion().
  void Suspect(const std::string& job_id, absl::Duration now);
  void EndSuspicion(const std::string& job_id);
  // The stacks of the job are saved because it stands still.
  void NoteSaved(const std::string& job_id, absl::Duration now);
  void SetChecking(const std::string& job_id, bool checking);
  // Whether this fault of one of the job's GPUs is new.
  bool NoteGpuFault(const std::string& job_id, const std::string& fault);
  // A checkpoint of the job took `duration`.
  void NoteCheckpoint(const std::string& job_id, absl::Duration duration);

  // The starts refused in a row since the job last made progress.
  Refusals RefusalsOf(const v1::Job& job) const;
  // Records how a start failed. If `failure` is a refusal, it is counted and the next start is due
  // after `delay`; else the count starts again from zero.
  void NoteFailure(const v1::Job& job, const Failure& failure, absl::Duration delay,
                   absl::Duration now);

  // The coordinator stood still for `gap`: this time does not count towards the stop grace of
  // STOPPING gangs.
  void ForgiveStandstill(absl::Duration gap);

  // Forgets all but these jobs.
  void Prune(const std::set<std::string>& active_jobs);

 private:
  Refusals RefusalsLocked(const v1::Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, Entry> jobs_ ABSL_GUARDED_BY(mutex_);  // by id
};

}  // namespace nsa::server
