// Shows other processes that this one makes progress, although it writes nothing for a while.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <thread>

#include "common/base/mutex.h"

namespace nsa::train {

// While it exists, a thread sets the time of a file to now a few times a second, as long as a
// counter goes on.
class Beat {
 public:
  // `counter` must outlive the object.
  Beat(std::filesystem::path file, const std::atomic<int64_t>& counter);
  ~Beat();
  Beat(const Beat&) = delete;
  Beat& operator=(const Beat&) = delete;

 private:
  void Run();

  const std::filesystem::path file_;
  const std::atomic<int64_t>& counter_;
  Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The other side: whether the beat of a file went on since the last call. One thread.
class BeatWatch {
 public:
  explicit BeatWatch(std::filesystem::path file) : file_(std::move(file)) {}
  bool WentOn();

 private:
  const std::filesystem::path file_;
  std::optional<std::filesystem::file_time_type> last_;
};

}  // namespace nsa::train
