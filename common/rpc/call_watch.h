// Ends calls that take too long, by the monotonic clock.
//
// gRPC 1.51 lets a call end at its deadline by a timer, and the thread behind all its timers sleeps
// until a time of the wall clock. When that clock is set back by an hour, no timer fires for an
// hour: no deadline ends a call, and a lost connection is not tried again. So a caller that must
// not wait for ever watches its calls itself.
#pragma once

#include <list>
#include <thread>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace nsa {

// Thread-safe. Has one thread, which sleeps while nothing is watched.
class CallWatch {
 private:
  struct Entry {
    grpc::ClientContext* context;
    absl::Duration end;  // RealClock().Monotonic()
    bool overran = false;
  };

 public:
  CallWatch();
  ~CallWatch();

  // Watches a call during its lifetime: cancels it when it lasts a second longer than `patience`,
  // by when gRPC should have ended it (never for InfiniteDuration). The context and the watch live
  // longer.
  class Guard {
   public:
    Guard(CallWatch* watch, grpc::ClientContext* context, absl::Duration patience);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    // The call was cancelled for that.
    bool overran() const;

   private:
    CallWatch* const watch_;
    std::list<Entry>::iterator entry_;
  };

 private:
  void Loop();
  void EndOverdue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace nsa
