// Deletes jobs that ended more than job_retention_days ago. Also removes, in small portions, what
// deleted jobs have left: their rows in the store, their logs and their stack dumps. out_dir is not
// touched. What the store need not know any more goes too, and its file gets shorter, at most
// kPages pages a second.
//
// A wall clock that is wrong by years must not cause records to be deleted. So nothing is deleted
// by age until the coordinator has run for kSteady without a jump of the wall clock.
#pragma once

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "server/act/executor.h"
#include "server/store/job_store.h"
#include "server/store/log_store.h"
#include "server/store/stack_store.h"

namespace nsa::server {

class Retention {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    LogStore& logs;
    Executor& executor;
    const Clock& clock;
    absl::Duration keep;  // how long after a job's end; zero: for ever
    StackStore& stacks;
    const std::atomic<bool>& draining;  // shutting down: no more work is done
  };

  // A wall clock that is changed by more than kJump has jumped.
  static constexpr absl::Duration kSteady = absl::Minutes(10);
  static constexpr absl::Duration kJump = absl::Minutes(1);
  static constexpr int kPages = 1'024;

  explicit Retention(Parts parts);

  // Passes work to the executor and returns at once. Always called by the same thread, about once a
  // second.
  void Tick();

 private:
  bool IsAgeDue(absl::Duration now);
  void Work(bool by_age);
  void Tidy(absl::Time now);
  bool DeleteNext(absl::Time oldest_kept, std::vector<JobPtr>* next);
  bool PurgeSome(const std::string& job_id);
  absl::Status RemoveFiles(const std::string& job_id) const;

  const Parts parts_;
  // Used by Tick()'s thread only.
  absl::Duration offset_ = absl::InfiniteDuration();  // wall clock minus monotonic clock
  absl::Duration steady_since_;
  absl::Duration next_age_check_ = -absl::InfiniteDuration();  // when to look for old jobs next
  absl::Duration retry_at_ = -absl::InfiniteDuration();
  // Jobs that could not be removed completely; skipped until retry_at_. Used by Tick()'s thread,
  // and by the executor's thread while busy_.
  std::set<std::string> stuck_;
  // Used by both threads.
  std::atomic<bool> busy_ = false;
  std::atomic<bool> shrinks_ = false;  // the store has more pages to give back
  std::atomic<bool> failed_ = false;
};

}  // namespace nsa::server
