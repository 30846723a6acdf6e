// The step journal of a worker whose disk may be full. Records that cannot be written wait in
// memory and are written in order as soon as writing succeeds again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/run/journal.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::train {

// Thread-safe; the lock means "one record at a time".
class BufferedJournal {
 public:
  // At most `capacity` records wait. When there are more, the oldest step record is dropped, or the
  // oldest record if no step waits.
  BufferedJournal(std::unique_ptr<JournalWriter> journal, size_t capacity);

  // Adds the record to those that wait and writes as many of them as possible. OK when none waits
  // afterwards, otherwise the error of the journal.
  absl::Status Append(v1::WorkerRecord record);

  // Number of records that were dropped.
  int64_t lost() const;

 private:
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<JournalWriter> journal_;
  const size_t capacity_;
  mutable Mutex mutex_;
  std::deque<v1::WorkerRecord> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nsa::train
