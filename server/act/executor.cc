#include "server/act/executor.h"

#include <utility>

#include "common/base/thread_name.h"

namespace nsa::server {

Executor::Executor(const std::string& name, int threads, size_t limit)
    : name_(name), limit_(limit) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

Executor::~Executor() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Executor::Run(std::function<void()> task) {
  MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  changed_.Signal();
}

bool Executor::TryRun(std::function<void()> task) {
  MutexLock lock(&mutex_);
  if (tasks_.size() >= limit_) return false;
  tasks_.push_back(std::move(task));
  changed_.Signal();
  return true;
}

void Executor::Loop() {
  NameThread(name_.c_str());
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !closing_) changed_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace nsa::server
