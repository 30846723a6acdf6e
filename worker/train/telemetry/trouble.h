// What of a rank's telemetry cannot be written now, why, and when it can again.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace nsa {

// Trouble begins with the first write that fails. It is over when each file that refused a record
// has taken one again and nothing has failed for a while: a disk at its brim takes a short row and
// refuses a long one, and nobody wants to be told each time. Thread-safe.
class Trouble {
 public:
  // `calm`: how long nothing must have failed for trouble to be over.
  explicit Trouble(absl::Duration calm) : calm_(calm) {}

  // Notes how the newest write to a file went; an empty `file` is one that trouble need not wait
  // for. True when it failed in a way in which no file of its `place` (those of one disk) has
  // failed since trouble began: that wants telling.
  bool Note(const std::string& place, const std::string& file, const absl::Status& status,
            absl::Duration now);

  // True once, when trouble is over.
  bool IsOver(absl::Duration now);

  // What was told last, while there is trouble; else empty.
  void Show(std::string text);
  std::string text() const;

 private:
  const absl::Duration calm_;
  mutable Mutex mutex_;
  std::set<std::string> failing_ ABSL_GUARDED_BY(mutex_);  // files
  // Since trouble began.
  std::set<std::pair<std::string, absl::StatusCode>> told_ ABSL_GUARDED_BY(mutex_);
  std::string text_ ABSL_GUARDED_BY(mutex_);
  absl::Duration failed_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa
