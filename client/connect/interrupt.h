// Ctrl-C as a value. Signals are blocked and waited for by one thread (SignalListener), which
// raises the Interrupt; whoever waits for something registers how to cut that wait short.
#pragma once

#include <functional>
#include <map>
#include <thread>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace nsa::client {

// Thread-safe.
class Interrupt {
 public:
  // What happens on Raise() while nobody waits, i.e. while there is nothing to cancel. nsactl ends
  // with 130; tests leave it empty.
  explicit Interrupt(std::function<void()> when_idle = nullptr)
      : when_idle_(std::move(when_idle)) {}

  void Raise();
  bool raised() const;

  // Waits; returns false at once when raised.
  bool SleepFor(absl::Duration duration);

  // While it lives, Raise() calls `cancel` (from another thread; at once when already raised).
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
  int next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, std::function<void()>> cancels_ ABSL_GUARDED_BY(mutex_);
};

// Blocks SIGINT, SIGTERM and SIGHUP in the calling thread and all started later, and raises
// `interrupt` when one arrives. Made before the first thread starts.
class SignalListener {
 public:
  explicit SignalListener(Interrupt* interrupt);
  ~SignalListener();

 private:
  std::thread thread_;
};

}  // namespace nsa::client
