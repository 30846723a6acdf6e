#include "server/act/executor.h"

#include <algorithm>
#include <utility>

#include "common/base/thread_name.h"

namespace nsa::server {

Executor::Executor(const std::string& name, int threads, size_t limit)
    : name_(name), limit_(limit), most_of_one_(std::max(1, threads - 1)) {
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

void Executor::Run(std::function<void()> task, const std::string& of) {
  MutexLock lock(&mutex_);
  tasks_.push_back({of, std::move(task)});
  changed_.Signal();
}

bool Executor::TryRun(std::function<void()> task, const std::string& of) {
  MutexLock lock(&mutex_);
  if (tasks_.size() >= limit_) return false;
  if (limit_ != SIZE_MAX && !of.empty()) {
    const auto own = std::ranges::count(tasks_, of, &Task::of);
    if (static_cast<size_t>(own) >= limit_of_one()) return false;
  }
  tasks_.push_back({of, std::move(task)});
  changed_.Signal();
  return true;
}

std::deque<Executor::Task>::iterator Executor::Next() {
  for (auto task = tasks_.begin(); task != tasks_.end(); ++task) {
    const auto running = running_.find(task->of);
    if (task->of.empty() || running == running_.end() || running->second < most_of_one_) {
      return task;
    }
  }
  return tasks_.end();
}

void Executor::Loop() {
  NameThread(name_.c_str());
  mutex_.Lock();
  while (true) {
    auto next = Next();
    while (next == tasks_.end() && !(closing_ && tasks_.empty())) {
      changed_.Wait(&mutex_);
      next = Next();
    }
    if (next == tasks_.end()) break;
    Task task = std::move(*next);
    tasks_.erase(next);
    ++running_[task.of];
    mutex_.Unlock();
    task.run();
    task.run = nullptr;  // what it holds goes without the lock
    mutex_.Lock();
    if (--running_[task.of] == 0) running_.erase(task.of);
    if (closing_ || !task.of.empty()) changed_.SignalAll();  // another of this caller may run
  }
  mutex_.Unlock();
}

}  // namespace nsa::server
