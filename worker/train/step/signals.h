// Receives SIGTERM and SIGINT as requests to stop. main() blocks the signals before the first
// thread starts, and a thread waits for them, so there is no signal handler.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace nsa::train {

// Blocks SIGTERM, SIGINT and SIGUSR1 (stack_signal.h) in this thread, in all threads that it starts
// and in a program that it executes; ignores SIGPIPE and SIGXFSZ, so that a write fails with EPIPE
// or EFBIG and the caller can name the file.
void BlockSignals();

// SIGTERM, SIGINT and SIGPIPE have their default effect again; SIGUSR1 stays blocked and SIGXFSZ
// ignored. For commands that may end at once.
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

}  // namespace nsa::train
