// Whether the store takes what it is given: for /healthz, and for the log, which names a failure
// once, again each minute while it lasts, and when it is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace nsa::server {

// Any thread may call any method.
class StoreHealth {
 public:
  StoreHealth(const Clock& clock, std::filesystem::path state_dir)
      : clock_(clock), state_dir_(std::move(state_dir)) {}

  void Committed();
  // `operation` is what the metric nsa_store_errors_total calls it: "append", "update", ….
  void Failed(const std::string& operation, const absl::Status& status);

  // Empty while the store works, else "the store in DIR has failed for 45 s, 12 times: append: …".
  std::string problem() const;

 private:
  std::string Text() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const std::filesystem::path state_dir_;
  std::atomic<bool> failing_ = false;  // so that a commit costs nothing while all is well
  mutable Mutex mutex_;
  absl::Duration since_ ABSL_GUARDED_BY(mutex_);   // of the monotonic clock
  absl::Duration logged_ ABSL_GUARDED_BY(mutex_);  // of the monotonic clock
  int64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string why_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
