// SIGTERM and SIGINT as a request to stop. Signals are blocked in main before the first thread, and
// a thread waits for them: there is no handler.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace nsa {

// Blocks SIGTERM and SIGINT for this thread and every later one, and ignores SIGPIPE.
void BlockSignals();

// Undoes BlockSignals() for a program that may end at once: each does what it does by default.
void UnblockSignals();

// Calls `on_signal` for each SIGTERM or SIGINT, on a thread of its own, until destroyed.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void(int signal)> on_signal);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace nsa
