// Passes records from the training thread to the thread that writes files, without ever blocking
// the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::train {

// Thread-safe.
class RecordQueue {
 public:
  // `sink` is called on the queue's thread, one record at a time, in order.
  RecordQueue(size_t capacity, std::function<void(const v1::WorkerRecord&)> sink);

  // Passes the queued records to `sink`, then ends the thread.
  ~RecordQueue();

  // Queues a record. When `capacity` records wait already, drops and counts it and returns false.
  bool Push(v1::WorkerRecord record);

  // Waits until `sink` has processed all queued records; false when that takes longer than
  // `timeout`.
  bool Flush(absl::Duration timeout);

  // Number of records that were dropped.
  int64_t dropped() const;

 private:
  void Run();

  const size_t capacity_;
  const std::function<void(const v1::WorkerRecord&)> sink_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<v1::WorkerRecord> waiting_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace nsa::train
