// The agent of this machine, so that one program is enough to train. It is started when there is
// none, found again by its lock when there is one, and started again when it dies. It and its
// workers live on when the coordinator ends, however it ends.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/run/oom_score.h"
#include "common/run/process.h"

namespace nsa::server {

class LocalAgent {
 public:
  struct Options {
    std::filesystem::path program;    // nsa-agent
    std::filesystem::path state_dir;  // the agent's: <coordinator's>/agent
    std::string coordinator_address;  // unix:<coordinator's>/coordinator.sock
    // Between one start and the next; doubles while agents die young. Short even then, since the
    // workers of a dead agent wait for the next one to adopt them.
    absl::Duration first_backoff = absl::Milliseconds(500);
    absl::Duration longest_backoff = absl::Seconds(2);
    int oom_score = kAgentOomScore;  // at least; else it would have the coordinator's
  };

  // Starts a thread that keeps the agent running. A missing program is logged once; the coordinator
  // works without an agent.
  static std::unique_ptr<LocalAgent> Start(Options options, const Clock& clock);
  // Ends the thread. The agent keeps running.
  ~LocalAgent();

  // Its process; nothing while there is none.
  std::optional<ProcessIdentity> process() const;

 private:
  LocalAgent(Options options, const Clock& clock);
  void Loop();
  void Reap();
  bool Lives();
  // The agent ends again and again, and this has been logged.
  bool failing() const { return backoff_ >= options_.longest_backoff; }
  // Starts the agent if there is none. Returns how long to wait before the next call.
  absl::Duration EnsureRunning();
  absl::Status Launch();

  const Options options_;
  const Clock& clock_;
  absl::Duration backoff_;      // the thread's
  absl::Duration healthy_at_;   // the thread's; monotonic
  std::optional<pid_t> child_;  // the thread's: to be reaped
  std::string last_problem_;    // the thread's
  mutable Mutex mutex_;
  CondVar woken_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ProcessIdentity> process_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nsa::server
