// Sends one notice's events, in order, on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/notice/message/message.h"
#include "server/notice/notice.h"
#include "server/notice/outcome.h"
#include "server/notice/progress.h"
#include "server/store/job_store.h"

namespace nsa::server {

// Wakes the threads of all notices: something has changed in the store, or the coordinator ends.
class NoticeBell {
 public:
  void Ring();
  void Stop();  // for good; `stopped()` is true afterwards

  int64_t rings() const;
  const std::atomic<bool>& stopped() const { return stopped_; }

  // Waits until there were more than `rings` rings. False when stopped.
  bool WaitForRing(int64_t rings);
  // False when stopped, at once.
  bool Sleep(absl::Duration pause);

 private:
  mutable Mutex mutex_;
  CondVar rung_;
  CondVar stop_;
  int64_t rings_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> stopped_ = false;  // set with the lock held
};

// What became of events, for metrics.
enum class Told { kDelivered, kRefused, kGivenUp };

// "delivered", "refused" or "given_up".
std::string ToldWord(Told told);

struct NoticePauses {
  // Between two looks at the store: however many events come, a notice asks no more often.
  absl::Duration looks = absl::Seconds(1);
  // Before a mail or a message of a chat: what happens meanwhile goes with it.
  absl::Duration gathers = absl::Seconds(2);
  // After the receiver refused something.
  absl::Duration refused = absl::Seconds(1);
  // After the store could not be read.
  absl::Duration store = absl::Seconds(30);
  // Before the next attempt.
  std::function<absl::Duration(int failures, double random, const Outcome&)> after = PauseAfter;
};

class Delivery {
 public:
  struct Parts {
    const JobStore& store;
    NoticeProgress& progress;
    NoticeBell& bell;
    const Clock& clock;
    // Sends at most `most` events.
    std::function<Outcome(std::span<const Telling>)> send;
    size_t most = 1;
    std::function<void(Told told, int events)> told;
    std::function<void()> failed;  // an attempt
    NoticePauses pauses;
  };

  Delivery(const Notice& notice, Parts parts);

  // Returns when the bell was stopped. What was delivered until then is on disk.
  void Run();

  // When the oldest event that waits for delivery happened; 0: none waits. Any thread.
  int64_t waiting_since() const { return waiting_since_; }

 private:
  bool Step();
  bool StoreFailed(const absl::Status& status);
  std::vector<Telling> Pick(const std::vector<v1::JobEvent>& events);
  bool Overdue(const v1::JobEvent& event) const;
  bool Skipped(int64_t rings, bool more);
  bool Settle(const Outcome& outcome, std::span<const Telling> tellings);
  bool TryLater(const Outcome& outcome, std::span<const Telling> tellings);
  void Keep(const absl::Status& written) const;

  const Notice& notice_;
  const Parts parts_;
  int64_t done_;           // the sequence that the next look begins after
  bool gathered_ = false;  // what is sent next has waited for more
  int failures_ = 0;       // in a row
  absl::Duration failing_since_ = absl::InfiniteDuration();  // monotonic
  std::minstd_rand random_{std::random_device{}()};
  std::atomic<int64_t> waiting_since_ = 0;
};

}  // namespace nsa::server
