// Tracks the telemetry files of a rank that cannot be written: why, and when they can again.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace nsa::train {

// The error state begins with the first write that fails. It ends when every file whose write
// failed has been written again and no write has failed for a while. The delay avoids an event for
// every change: a nearly full disk may accept a short row and refuse a long one. Thread-safe.
class WriteErrors {
 public:
  // `restored_after`: the error state ends when no write has failed for this long.
  explicit WriteErrors(absl::Duration restored_after) : restored_after_(restored_after) {}

  // Records the result of the latest write to a file. The error state does not wait for a file with
  // an empty name. Returns true when the failure should be reported: when no file of the same
  // `place` (e.g. of one disk) has failed with this status code since the error state began.
  bool Record(const std::string& place, const std::string& file, const absl::Status& status,
              absl::Duration now);

  // Returns true once, when the error state ends.
  bool CheckRestored(absl::Duration now);

  // The text of the failure that was reported last; empty outside the error state.
  void SetText(std::string text);
  std::string text() const;

 private:
  const absl::Duration restored_after_;
  mutable Mutex mutex_;
  std::set<std::string> failing_ ABSL_GUARDED_BY(mutex_);  // files
  // Failures that were reported since the error state began.
  std::set<std::pair<std::string, absl::StatusCode>> reported_ ABSL_GUARDED_BY(mutex_);
  std::string text_ ABSL_GUARDED_BY(mutex_);
  absl::Duration failed_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::train
