// Threads for work that may block, because gRPC's callbacks must not wait for a disk.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace nsa::server {

// Runs tasks in order of arrival on a fixed number of threads. Tasks of one caller never hold all
// threads, if there are several: later ones of others overtake them. Thread-safe.
class Executor {
 public:
  // `name` is the name of the threads, at most 15 bytes. TryRun() lets at most `limit` tasks wait
  // for a thread; Run() has no limit.
  Executor(const std::string& name, int threads, size_t limit = SIZE_MAX);
  // Runs all queued tasks, then ends the threads.
  ~Executor();

  // `of`: whose task it is; empty: nobody's.
  void Run(std::function<void()> task, const std::string& of = "");

  // Returns false, and drops the task, when the queue is full, or half of it is of this caller.
  // `of` is empty for tasks that are nobody's: they have no such limits.
  bool TryRun(std::function<void()> task, const std::string& of = "");

  const std::string& name() const { return name_; }
  size_t limit() const { return limit_; }
  size_t limit_of_one() const { return limit_ / 2; }

 private:
  struct Task {
    std::string of;
    std::function<void()> run;
  };

  void Loop();
  // The first task that may run now; the end if none may.
  std::deque<Task>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const size_t limit_;
  const int most_of_one_;  // threads
  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> running_ ABSL_GUARDED_BY(mutex_);  // by whose they are
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace nsa::server
