// The thread that computes the answers, one request after another in the order of their arrival.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "worker/train/serve/call.h"
#include "worker/train/serve/engine.h"

namespace nsa::train::serve {

// Thread-safe.
class ModelThread {
 public:
  // `engine` outlives the thread; nobody else completes with it. `threads` of the kernels, as
  // SetThreads() (gpu/machine.h) takes them; they belong to this thread.
  ModelThread(Engine* engine, int threads);
  // Ends as End() does, and waits for the step of computing in progress.
  ~ModelThread();
  ModelThread(const ModelThread&) = delete;
  ModelThread& operator=(const ModelThread&) = delete;

  // Lets a call wait for its turn. ResourceExhausted when kWaitingRequests wait already,
  // Unavailable after End().
  absl::Status Add(std::shared_ptr<Call> call);

  // The caller no longer waits: removes the call from the queue, or ends its computation.
  void Leave(const std::shared_ptr<Call>& call);

  // Calls that wait for their turn.
  size_t waiting() const;

  // Ends all calls with Unavailable, the running one too, and accepts no more.
  void End();

 private:
  void Loop(int threads);
  std::shared_ptr<Call> Next();
  void Compute(Call* call);

  Engine& engine_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Call>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Call> current_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace nsa::train::serve
