// Waits for changes of a job, for a reply that is sent piece by piece.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/watch/change_hub.h"

namespace nsa::server {

// Used by one thread. The hub's callback only rings.
class ChangeBell {
 public:
  // Of all jobs when the id is empty. The hub and `draining` are borrowed.
  ChangeBell(ChangeHub* hub, const std::string& job_id, const Clock& clock,
             const std::atomic<bool>& draining)
      : clock_(clock), draining_(draining) {
    subscription_ = hub->Subscribe(job_id, [bell = bell_](const std::string&) {
      const MutexLock lock(&bell->mutex);
      bell->rung = true;
      bell->changed.SignalAll();
    });
  }

  // Until something has changed since the last wait: at least `pause`, so that a burst of changes
  // is one, and at most `longest`. At once when the coordinator drains.
  void Wait(absl::Duration pause, absl::Duration longest) {
    const absl::Duration began = clock_.Monotonic();
    MutexLock lock(&bell_->mutex);
    while (true) {
      const absl::Duration waited = clock_.Monotonic() - began;
      if (waited >= longest) break;
      if (bell_->rung && (waited >= pause || draining_)) break;
      bell_->changed.WaitFor(&bell_->mutex, (bell_->rung ? pause : longest) - waited);
    }
    bell_->rung = false;
  }

 private:
  struct Bell {
    Mutex mutex;
    CondVar changed;
    bool rung ABSL_GUARDED_BY(mutex) = false;
  };

  const Clock& clock_;
  const std::atomic<bool>& draining_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  ChangeHub::Subscription subscription_;
};

}  // namespace nsa::server
