// The machines on which no rank is placed (nsactl node cordon and drain), and all that are known.
// The file is <state_dir>/cordons.pb (mode 0600, replaced atomically, with a checksum). It does not
// matter whether a machine is up: a cordon holds until it is removed. Thread-safe; the lock is held
// while the file is written.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/rule/cordon.h"

namespace nsa::server {

// By name of the machine.
using KnownNodes = std::map<std::string, v1::KnownNode>;

class NodeStore {
 public:
  // Empty when there is no file. DataLoss when it is damaged; the error names it and the remedy.
  static absl::StatusOr<std::unique_ptr<NodeStore>> Open(const std::filesystem::path& state_dir);

  Cordons All() const;

  // The machines that this coordinator, or one before it, has heard and not forgotten.
  KnownNodes Known() const;
  // Replaces them. Writes only if something differs; durable as Put().
  absl::Status SetKnown(const KnownNodes& known);

  // Cordons a machine, or replaces its cordon. It is on disk when the result is OK; after an error
  // nothing has changed. ResourceExhausted for one machine too many (common/base/limits.h).
  absl::Status Put(const std::string& node, const v1::NodeCordon& cordon);

  // Moves the deadlines of drains, when the wall clock was set by this much. Durable as Put().
  absl::Status MoveDeadlines(absl::Duration step);

  // Removes the cordon of a machine; OK if it has none. Durable as Put().
  absl::Status Remove(const std::string& node);

 private:
  explicit NodeStore(std::filesystem::path file) : file_(std::move(file)) {}
  absl::Status Replace(v1::StoredCordons cordons) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::filesystem::path file_;
  mutable Mutex mutex_;
  v1::StoredCordons cordons_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
