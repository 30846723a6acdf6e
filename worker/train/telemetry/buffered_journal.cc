#include "worker/train/telemetry/buffered_journal.h"

#include <algorithm>
#include <utility>

namespace nsa::train {

BufferedJournal::BufferedJournal(std::unique_ptr<JournalWriter> journal, size_t capacity)
    : journal_(std::move(journal)), capacity_(capacity) {}

absl::Status BufferedJournal::Append(v1::WorkerRecord record) {
  const MutexLock lock(&mutex_);
  waiting_.push_back(std::move(record));
  while (!waiting_.empty()) {
    const absl::Status status = journal_->Append(waiting_.front());
    if (!status.ok()) {
      MakeRoom();
      return status;
    }
    waiting_.pop_front();
  }
  return absl::OkStatus();
}

int64_t BufferedJournal::lost() const {
  const MutexLock lock(&mutex_);
  return lost_;
}

void BufferedJournal::MakeRoom() {
  if (waiting_.size() <= capacity_) return;
  const auto step = std::ranges::find_if(
      waiting_, [](const v1::WorkerRecord& waiting) { return waiting.has_step(); });
  waiting_.erase(step != waiting_.end() ? step : waiting_.begin());
  ++lost_;
}

}  // namespace nsa::train
