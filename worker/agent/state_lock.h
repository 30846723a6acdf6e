// One agent a state folder: <state>/agent.lock is locked for as long as the agent lives, and says
// as JSON which process holds it (common/process.h reads it).
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"

namespace nsa {

class StateLock {
 public:
  // AlreadyExists, naming the process, when another agent holds it.
  static absl::StatusOr<std::unique_ptr<StateLock>> Take(const std::filesystem::path& state_dir);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace nsa
