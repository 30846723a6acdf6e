// Who changed what, from where, and with which result. The entries are in <state_dir>/audit.log
// and, once that is full, in audit.log.1 (audit_file.h). An entry survives the death of the
// process; a loss of power may take the last seconds.
//
// What callers were refused whom nobody knows is in audit-refused.log, a small room of its own:
// however many of them there are, they push no other entry out. The first refusal of a source, a
// method and a result is an entry at once; those of the minute after it are counted and become one
// entry. Sources beyond kSources in a minute are counted together. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/access.pb.h"
#include "server/store/audit/audit_file.h"

namespace nsa::server {

class AuditLog {
 public:
  static constexpr int64_t kFileBytes = 32 << 20;
  static constexpr int64_t kRefusedFileBytes = 1 << 20;
  static constexpr size_t kSources = 64;

  // See AuditFile::Open(). No file is larger than `file_bytes`.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::filesystem::path& state_dir,
                                                        const Clock& clock,
                                                        int64_t file_bytes = kFileBytes);
  // Writes what was counted.
  ~AuditLog();

  // Appends an entry; sequence and time are filled in. An entry without `who` whose result is not
  // OK is that of a caller whom nobody knows. A failure is logged.
  void Add(v1::AuditEntry entry);

  // At most `limit` entries with a sequence above `after`, in order. Reads the disk: that page, not
  // what is before it.
  absl::StatusOr<std::vector<v1::AuditEntry>> Read(int64_t after, size_t limit) const;

  // The sequence of the last entry; 0: none.
  int64_t last_sequence() const;

 private:
  // Refusals of unknown callers since `since`, without the first, which has an entry of its own.
  struct Counted {
    v1::AuditEntry entry;
    absl::Duration since;  // monotonic
    int64_t more = 0;
  };

  AuditLog(const Clock& clock, AuditFile known, AuditFile refused)
      : clock_(clock),
        known_(std::move(known)),
        refused_(std::move(refused)),
        sequence_(std::max(known_.last_sequence(), refused_.last_sequence())) {}
  void Append(v1::AuditEntry entry, AuditFile* to) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(v1::AuditEntry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the counts that are older than a minute, or all.
  void WriteCounts(bool all) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  mutable AuditFile known_ ABSL_GUARDED_BY(mutex_);
  mutable AuditFile refused_ ABSL_GUARDED_BY(mutex_);
  mutable int64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable std::map<std::string, Counted> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
