// Threads for work that may block, because gRPC's callbacks must not wait for a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace nsa::server {

// Runs tasks in order of arrival on a fixed number of threads. Thread-safe.
class Executor {
 public:
  // `name` is the name of the threads, at most 15 bytes. TryRun() lets at most `limit` tasks wait
  // for a thread; Run() has no limit.
  Executor(const std::string& name, int threads, size_t limit = SIZE_MAX);
  // Runs all queued tasks, then ends the threads.
  ~Executor();

  void Run(std::function<void()> task);

  // Returns false, and drops the task, when the queue is full.
  bool TryRun(std::function<void()> task);

  const std::string& name() const { return name_; }
  size_t limit() const { return limit_; }

 private:
  void Loop();

  const std::string name_;
  const size_t limit_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace nsa::server
