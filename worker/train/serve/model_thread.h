// The thread that computes the answers: it takes requests in the order of their arrival, as many as
// the batch has slots for, and computes them together.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "worker/train/serve/batch.h"
#include "worker/train/serve/call.h"

namespace nsa::train::serve {

// Thread-safe.
class ModelThread {
 public:
  // `batch` outlives the thread; nobody else uses it. `threads` of the kernels, as SetThreads()
  // (gpu/machine.h) takes them; they belong to this thread.
  ModelThread(Batch* batch, int threads);
  // Ends as End() does, and waits for the step of computing in progress.
  ~ModelThread();
  ModelThread(const ModelThread&) = delete;
  ModelThread& operator=(const ModelThread&) = delete;

  // Lets a call wait for a slot. ResourceExhausted when kWaitingRequests wait already, Unavailable
  // after End().
  absl::Status Add(std::shared_ptr<Call> call);

  // The caller no longer waits: removes the call from the queue, or ends its computation.
  void Leave(const std::shared_ptr<Call>& call);

  struct Load {
    size_t waiting = 0;  // calls that have no slot yet
    int used = 0;        // slots that have a choice
  };
  Load load() const;

  // Ends all calls with Unavailable, those that are computed too, and accepts no more.
  void End();

 private:
  void Loop(int threads);
  bool TakeCalls(bool idle);
  void Wake();

  Batch& batch_;  // used by the thread alone
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Call>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Call>> taken_ ABSL_GUARDED_BY(mutex_);  // until they are left
  int used_ ABSL_GUARDED_BY(mutex_) = 0;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  // a call of the batch has changed
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace nsa::train::serve
