// SIGTERM and SIGINT as requests to stop. main blocks the signals before the first thread starts,
// and a thread waits for them: there is no handler.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace nsa {

// Blocks SIGTERM and SIGINT for this thread and every later one, and ignores SIGPIPE.
void BlockSignals();

// Undoes BlockSignals(), for a program that may end at once: signals have their default effect.
void UnblockSignals();

// Calls `on_signal` on its own thread for each SIGTERM or SIGINT, until destroyed.
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
