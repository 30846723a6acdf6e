// SIGUSR1 writes the stacks of all threads to stderr, which an agent keeps as the worker's log; the
// process goes on. `nsa-agent dump`, a program beside this one, reads them from outside, so this
// also works when the worker is stuck. There is no signal handler: a thread waits for the signal.
#pragma once

#include <atomic>
#include <thread>

namespace nsa::train {

// Call BlockSignals() first, before any thread starts: until this object exists a SIGUSR1 waits.
class StackSignal {
 public:
  StackSignal();
  // Ends a dump in progress.
  ~StackSignal();
  StackSignal(const StackSignal&) = delete;
  StackSignal& operator=(const StackSignal&) = delete;

 private:
  void Loop();

  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace nsa::train
