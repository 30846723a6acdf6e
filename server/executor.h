// Threads for what may block: gRPC's callbacks must not wait for a disk.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace nsa::server {

// Runs tasks in order of arrival on a fixed number of threads. Thread-safe.
class Executor {
 public:
  // `name` is that of the threads, at most 15 bytes.
  Executor(const std::string& name, int threads);
  // Runs what is queued, then ends.
  ~Executor();

  void Run(std::function<void()> task);

 private:
  void Loop();

  const std::string name_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace nsa::server
