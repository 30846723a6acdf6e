// Receives SIGTERM and SIGINT as requests to stop. main() blocks the signals before the first
// thread starts, and a thread waits for them, so there is no signal handler.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace nsa {

// Blocks SIGTERM and SIGINT in this thread and in all threads that it starts; ignores SIGPIPE.
void BlockSignals();

// Undoes BlockSignals(): signals have their default effect. For commands that may end at once.
void UnblockSignals();

// Calls `on_signal` on a separate thread for each SIGTERM or SIGINT, until destroyed.
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
