// Ctrl-C. Signals are blocked in every thread; one thread (SignalListener) waits for them and
// raises the Interrupt. Code that waits for something registers how to cancel that wait
// (Interrupt::Scope).
#pragma once

#include <csignal>
#include <functional>
#include <map>
#include <thread>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace nsa::client {

// Thread-safe.
class Interrupt {
 public:
  // Raise() calls `when_idle` while nobody waits, i.e. when there is nothing to cancel. nsactl
  // exits with 130; tests leave it empty.
  explicit Interrupt(std::function<void()> when_idle = nullptr)
      : when_idle_(std::move(when_idle)) {}

  // `signal` is the one that came.
  void Raise(int signal = SIGINT);
  bool raised() const;

  // For a command that goes on after Ctrl-C has ended a part of it: forgets Ctrl-C. False, and
  // nothing, once another signal came.
  bool ForgetCtrlC();

  // Waits; returns false at once when raised.
  bool SleepFor(absl::Duration duration);

  // During its lifetime Raise() calls `cancel`, from the thread that raises. When already raised,
  // the constructor calls it.
  class Scope {
   public:
    Scope(Interrupt* interrupt, std::function<void()> cancel);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupt* const interrupt_;
    int id_ = 0;
  };

 private:
  const std::function<void()> when_idle_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool raised_ ABSL_GUARDED_BY(mutex_) = false;
  bool only_ctrl_c_ ABSL_GUARDED_BY(mutex_) = true;
  int next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, std::function<void()>> cancels_ ABSL_GUARDED_BY(mutex_);
};

// Blocks SIGINT, SIGTERM and SIGHUP in the calling thread and in all threads started later, and
// raises `interrupt` when one arrives. Create it before the first thread starts.
class SignalListener {
 public:
  explicit SignalListener(Interrupt* interrupt);
  ~SignalListener();

 private:
  std::thread thread_;
};

}  // namespace nsa::client
