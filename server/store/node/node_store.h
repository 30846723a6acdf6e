// The machines on which no rank is placed: nsactl node cordon and drain. The file is
// <state_dir>/cordons.pb (mode 0600, replaced atomically, with a checksum). It does not matter
// whether a machine is up: a cordon holds until it is removed. Thread-safe; the lock is held while
// the file is written.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/rule/cordon.h"

namespace nsa::server {

class NodeStore {
 public:
  // Empty when there is no file. DataLoss when it is damaged; the error names it and the remedy.
  static absl::StatusOr<std::unique_ptr<NodeStore>> Open(const std::filesystem::path& state_dir);

  Cordons All() const;

  // Cordons a machine, or replaces its cordon. It is on disk when the result is OK; after an error
  // nothing has changed. ResourceExhausted for one machine too many (common/base/limits.h).
  absl::Status Put(const std::string& node, const v1::NodeCordon& cordon);

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
