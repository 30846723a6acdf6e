// Who changed what, from where, and with which result. The file <state_dir>/audit.log has one JSON
// object on each line (mode 0600, only appended to). At kFileBytes it is renamed to audit.log.1,
// which replaces the one before. An entry survives the death of the process; a loss of power may
// take the last seconds. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::server {

class AuditLog {
 public:
  static constexpr int64_t kFileBytes = 32 << 20;

  // Opens or makes the file. A last line that was cut off is removed. PermissionDenied, naming the
  // file, when it cannot be written.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::filesystem::path& state_dir,
                                                        const Clock& clock,
                                                        int64_t file_bytes = kFileBytes);

  // Appends an entry; sequence and time are filled in. A failure is logged.
  void Add(v1::AuditEntry entry);

  // At most `limit` entries with a sequence above `after`, in order. Reads the disk.
  absl::StatusOr<std::vector<v1::AuditEntry>> Read(int64_t after, size_t limit) const;

  // The sequence of the last entry; 0: none.
  int64_t last_sequence() const;

 private:
  AuditLog(std::filesystem::path file, const Clock& clock, int64_t file_bytes)
      : file_(std::move(file)), clock_(clock), file_bytes_(file_bytes) {}
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Append(const v1::AuditEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::filesystem::path file_;
  const Clock& clock_;
  const int64_t file_bytes_;
  mutable Mutex mutex_;
  Fd fd_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nsa::server
