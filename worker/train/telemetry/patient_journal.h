// The step journal of a worker whose disk may be full: what the disk does not take now waits in
// memory, and is written in its order as soon as the disk takes records again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/run/journal.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

// Thread-safe; the lock means "one record at a time".
class PatientJournal {
 public:
  // At most `capacity` records wait. Of more, the oldest step is lost; without one, the oldest
  // record.
  PatientJournal(std::unique_ptr<JournalWriter> journal, size_t capacity);

  // Appends the record behind those that wait. OK when none waits afterwards, else why the journal
  // takes none.
  absl::Status Append(v1::WorkerRecord record);

  // Records that were lost.
  int64_t lost() const;

 private:
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<JournalWriter> journal_;
  const size_t capacity_;
  mutable Mutex mutex_;
  std::deque<v1::WorkerRecord> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nsa
