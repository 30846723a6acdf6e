// One coordinator a state folder.
#pragma once

#include <filesystem>

#include "absl/status/statusor.h"

namespace nsa::server {

// Holds an exclusive flock on <state_dir>/coordinator.lock, which contains the holder's pid. The
// kernel lets go of it when the process ends, however it ends.
class StateLock {
 public:
  // Creates the folder (mode 0700) when it is missing. FailedPrecondition with the holder's pid
  // when another process has the folder.
  static absl::StatusOr<StateLock> Acquire(const std::filesystem::path& state_dir);
  StateLock(StateLock&& other) noexcept;
  StateLock& operator=(StateLock&&) = delete;
  ~StateLock();

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace nsa::server
