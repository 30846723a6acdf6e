// Keeps an agent running on this machine, so that starting the coordinator is enough to train. An
// agent that already runs is found by its lock file; otherwise one is started, and started again
// when it dies. The agent and its workers keep running when the coordinator ends, in whatever way.
//
// The lock file says from which folder its holder runs. In a state folder that was moved, the agent
// still works at the old path, where no coordinator listens: it is ended, its workers go on, and a
// new agent takes them over. In a copy of a state folder the file names the agent of the original,
// which is none of ours.
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
    // Delay between two starts. It doubles while agents die soon after their start. The longest
    // delay is short too, because the workers of a dead agent wait for the next one to adopt them.
    absl::Duration first_backoff = absl::Milliseconds(500);
    absl::Duration longest_backoff = absl::Seconds(2);
    int64_t log_bytes = 16 << 20;    // of agent.log, then it becomes agent.log.1
    int oom_score = kAgentOomScore;  // the minimum; the agent would inherit the coordinator's score
  };

  // Starts a thread that keeps the agent running. A missing program is logged once; the coordinator
  // works without an agent.
  static std::unique_ptr<LocalAgent> Start(Options options, const Clock& clock);
  // Ends the thread. The agent keeps running.
  ~LocalAgent();

  // The agent's process; empty while there is none.
  std::optional<ProcessIdentity> process() const;

 private:
  LocalAgent(Options options, const Clock& clock);
  void Loop();
  void Reap();
  bool Lives();
  enum class Holder { kOurs, kMoved, kAnothers };
  // Whose agent a process is that the lock file names.
  Holder HolderOf(const ProcessIdentity& holder) const;
  // Ends the agent of a state folder that was moved here. False if that is not possible.
  bool EndMoved(const ProcessIdentity& holder);
  // The agent keeps dying soon after its start, and this has been logged.
  bool failing() const { return backoff_ >= options_.longest_backoff; }
  // Starts the agent if there is none. Returns how long to wait before the next call.
  absl::Duration EnsureRunning();
  absl::Status Launch();
  void RotateLog();

  const Options options_;
  const Clock& clock_;
  absl::Duration backoff_;                // used by the thread only
  absl::Duration healthy_at_;             // used by the thread only; monotonic
  std::optional<pid_t> child_;            // used by the thread only: to be reaped
  std::string last_problem_;              // used by the thread only
  bool log_stuck_ = false;                // used by the thread only: it could not be rotated
  std::optional<ProcessIdentity> ended_;  // used by the thread only: a signal was sent
  mutable Mutex mutex_;
  CondVar woken_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ProcessIdentity> process_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nsa::server
