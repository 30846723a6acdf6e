#include "worker/train/telemetry/trouble.h"

namespace nsa {

bool Trouble::Note(const std::string& place, const std::string& file, const absl::Status& status,
                   absl::Duration now) {
  const MutexLock lock(&mutex_);
  if (status.ok()) {
    failing_.erase(file);
    return false;
  }
  if (!file.empty()) failing_.insert(file);
  failed_at_ = now;
  return told_.insert({place, status.code()}).second;
}

bool Trouble::IsOver(absl::Duration now) {
  const MutexLock lock(&mutex_);
  if (told_.empty() || !failing_.empty() || now - failed_at_ < calm_) return false;
  told_.clear();
  text_.clear();
  return true;
}

void Trouble::Show(std::string text) {
  const MutexLock lock(&mutex_);
  text_ = std::move(text);
}

std::string Trouble::text() const {
  const MutexLock lock(&mutex_);
  return text_;
}

}  // namespace nsa
