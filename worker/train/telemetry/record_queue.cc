#include "worker/train/telemetry/record_queue.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/thread_name.h"

namespace nsa::train {

RecordQueue::RecordQueue(size_t capacity, std::function<void(const v1::WorkerRecord&)> sink)
    : capacity_(capacity), sink_(std::move(sink)), thread_([this] { Run(); }) {}

RecordQueue::~RecordQueue() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

bool RecordQueue::Push(v1::WorkerRecord record) {
  const MutexLock lock(&mutex_);
  if (waiting_.size() >= capacity_) {
    ++dropped_;
    return false;
  }
  waiting_.push_back(std::move(record));
  changed_.SignalAll();
  return true;
}

bool RecordQueue::Flush(absl::Duration timeout) {
  const RealClock clock;
  const absl::Duration deadline = clock.Monotonic() + timeout;
  const MutexLock lock(&mutex_);
  while (!waiting_.empty() || busy_) {
    const absl::Duration left = deadline - clock.Monotonic();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(&mutex_, left);
  }
  return true;
}

int64_t RecordQueue::dropped() const {
  const MutexLock lock(&mutex_);
  return dropped_;
}

void RecordQueue::Run() {
  NameThread("records");
  while (true) {
    v1::WorkerRecord record;
    {
      const MutexLock lock(&mutex_);
      busy_ = false;
      changed_.SignalAll();
      while (waiting_.empty() && !ending_) changed_.Wait(&mutex_);
      if (waiting_.empty()) return;
      record = std::move(waiting_.front());
      waiting_.pop_front();
      busy_ = true;
    }
    sink_(record);
  }
}

}  // namespace nsa::train
