// A clock that the test advances.
#pragma once

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace nsa {

// Thread-safe.
class FakeClock final : public Clock {
 public:
  absl::Time Wall() const override {
    MutexLock lock(&mutex_);
    return wall_;
  }
  absl::Duration Monotonic() const override {
    MutexLock lock(&mutex_);
    return monotonic_;
  }

  // Advances both clocks.
  void Advance(absl::Duration duration) {
    MutexLock lock(&mutex_);
    wall_ += duration;
    monotonic_ += duration;
  }

  // Changes the wall clock only, as when somebody sets it.
  void JumpWall(absl::Duration duration) {
    MutexLock lock(&mutex_);
    wall_ += duration;
  }

 private:
  mutable Mutex mutex_;
  absl::Time wall_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'800'000'000);
  absl::Duration monotonic_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1'000);
};

}  // namespace nsa
