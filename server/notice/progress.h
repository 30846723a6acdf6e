// How far each notice has come: the file <state_dir>/notices.pb (mode 0600, replaced atomically and
// synced, with a checksum). Thread-safe.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace nsa::server {

class NoticeProgress {
 public:
  // Reads the file and writes it again if it has changed: a notice that is not in it begins after
  // `last_event`, so it sends nothing of the past; one that is not among `names` is forgotten. A
  // place beyond `last_event`, of a store that was put back, is set to it. Without names and
  // without a file, nothing is written. DataLoss when the file is damaged, with the remedy.
  static absl::StatusOr<std::unique_ptr<NoticeProgress>> Open(
      const std::filesystem::path& state_dir, const std::vector<std::string>& names,
      int64_t last_event, const Clock& clock);

  // Writes what Skip() has not written; an error is ignored, since nothing that was delivered is
  // lost by it.
  ~NoticeProgress();

  // The sequence of the latest event that is done.
  int64_t Done(const std::string& name) const;

  // `sequence` was delivered, refused or given up. It is on disk when this returns OK. After an
  // error the place is right in memory, and the next call writes it too.
  absl::Status Set(const std::string& name, int64_t sequence);

  // Events up to `sequence` do not concern the notice. It is written with the next Set(), or after
  // kSkipsEvery: a crash loses no more, and what is skipped is looked at again.
  absl::Status Skip(const std::string& name, int64_t sequence);

  static constexpr absl::Duration kSkipsEvery = absl::Seconds(10);

 private:
  NoticeProgress(std::filesystem::path file, const Clock& clock)
      : file_(std::move(file)), clock_(clock) {}
  absl::Status Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::filesystem::path file_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::map<std::string, int64_t> done_ ABSL_GUARDED_BY(mutex_);
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;  // done_ is not what the file has
  absl::Duration written_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
};

}  // namespace nsa::server
