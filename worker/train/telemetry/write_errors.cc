#include "worker/train/telemetry/write_errors.h"

namespace nsa::train {

bool WriteErrors::Record(const std::string& place, const std::string& file,
                         const absl::Status& status, absl::Duration now) {
  const MutexLock lock(&mutex_);
  if (status.ok()) {
    failing_.erase(file);
    return false;
  }
  if (!file.empty()) failing_.insert(file);
  failed_at_ = now;
  return reported_.insert({place, status.code()}).second;
}

bool WriteErrors::CheckRestored(absl::Duration now) {
  const MutexLock lock(&mutex_);
  if (reported_.empty() || !failing_.empty() || now - failed_at_ < restored_after_) return false;
  reported_.clear();
  text_.clear();
  return true;
}

void WriteErrors::SetText(std::string text) {
  const MutexLock lock(&mutex_);
  text_ = std::move(text);
}

std::string WriteErrors::text() const {
  const MutexLock lock(&mutex_);
  return text_;
}

}  // namespace nsa::train
