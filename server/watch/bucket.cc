#include "server/watch/bucket.h"

#include <algorithm>

namespace nsa::server {

bool Bucket::Take(absl::Duration now) {
  Fill(now);
  if (level_ < 1) return false;
  level_ -= 1;
  return true;
}

bool Bucket::Left(absl::Duration now) {
  Fill(now);
  return level_ > 0;
}

bool Bucket::Full(absl::Duration now) {
  Fill(now);
  return level_ >= burst_;
}

void Bucket::Fill(absl::Duration now) {
  if (now <= last_) return;
  level_ = std::min(burst_, level_ + rate_ * absl::ToDoubleSeconds(now - last_));
  last_ = now;
}

}  // namespace nsa::server
