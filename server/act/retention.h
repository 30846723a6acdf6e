// Deletes: jobs that ended longer ago than job_retention_days, and, a little at a time, what
// deleted jobs have left: their rows in the store, their logs, their stack dumps. out_dir is not
// touched.
//
// A wall clock that is wrong by years must not delete anybody's records: nothing is deleted by age
// until the coordinator has run for kSteady without a jump of the clock.
#pragma once

#include <atomic>
#include <filesystem>
#include <optional>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "server/act/executor.h"
#include "server/store/job_store.h"
#include "server/store/log_store.h"

namespace nsa::server {

class Retention {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    LogStore& logs;
    Executor& executor;
    const Clock& clock;
    absl::Duration keep;  // after a job's end; zero: for ever
    std::filesystem::path dumps_dir;
    const std::atomic<bool>& draining;  // shutting down: the rest waits for the next start
  };

  // A clock that is set by more than kJump has jumped.
  static constexpr absl::Duration kSteady = absl::Minutes(10);
  static constexpr absl::Duration kJump = absl::Minutes(1);

  explicit Retention(Parts parts);

  // Passes work to the executor and returns at once. Called by one thread, about once a second.
  void Tick();

 private:
  std::optional<absl::Time> OldestKept(absl::Duration now);
  void Work(std::optional<absl::Time> oldest_kept);
  bool DeleteOne(absl::Time oldest_kept);
  bool PurgeSome(const std::string& job_id);
  absl::Status RemoveFiles(const std::string& job_id) const;

  const Parts parts_;
  // Of Tick()'s thread.
  absl::Duration offset_ = absl::InfiniteDuration();  // wall clock to monotonic
  absl::Duration steady_since_;
  absl::Duration next_age_check_ = -absl::InfiniteDuration();  // at ages
  absl::Duration retry_at_ = -absl::InfiniteDuration();
  // Jobs of which something could not be removed, until retry_at_. Of Tick()'s thread, and of the
  // executor's while busy_.
  std::set<std::string> stuck_;
  // Of both.
  std::atomic<bool> busy_ = false;
  std::atomic<bool> failed_ = false;
};

}  // namespace nsa::server
