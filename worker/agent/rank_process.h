// One worker process on this machine: starts or adopts it, and reports everything that it writes
// until its end.
//
// The worker runs in its own session and outlives the agent; the next agent finds it by the
// identity in its run folder. Each RankProcess has a thread that looks its user up, starts it,
// forwards journal and log, passes stop requests on and notices the end, so that neither a
// directory of users that is slow to answer, nor a slow coordinator, nor a stopped worker delays
// the agent's heartbeat.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/run/process.h"
#include "common/run/run_dir.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "worker/agent/options.h"
#include "worker/agent/rank/exit.h"
#include "worker/agent/rank/memory_kill.h"
#include "worker/agent/reporter.h"
#include "worker/agent/user/unix_user.h"

namespace nsa::agent {

// Thread-safe.
class RankProcess {
 public:
  // Shared by all workers of an agent; outlives them.
  struct Shared {
    const AgentOptions& options;
    Link* link;
    std::function<void()> on_change;  // a worker has started to run or has ended; must not block
  };

  // Starts a worker, which may take a while: until then it is STARTING without a process. Never
  // fails: the observation says why a worker could not be started.
  static std::unique_ptr<RankProcess> Start(const Shared& shared,
                                            const v1::WorkerAssignment& assignment);

  // Takes over a run folder that an earlier agent left; nullptr when no worker was ever started in
  // it.
  static std::unique_ptr<RankProcess> Adopt(const Shared& shared, const RankKey& key,
                                            const RunDir& dir);

  // Ends the reporting at once; waits for a start in progress. The worker process keeps running.
  ~RankProcess();

  const RankKey& key() const { return key_; }
  const RunDir& dir() const { return dir_; }
  // The worker process; empty when it has ended or is not known.
  std::optional<ProcessIdentity> identity() const;

  // What the heartbeat reports of this worker. Never waits for the worker or the coordinator.
  v1::WorkerObservation Observe() const;

  // Requests a stop, again and again until the worker has answered. STOP_MODE_NOW kills it.
  void SetStop(const v1::StopRequest& stop);

  // For a rank of a job on several machines: Observe() tells from then on where the rank waits for
  // the rank before it, and the next rank's address, once it is in the assignment, is put into the
  // rendezvous folder, where the worker looks for it. Does nothing for any other job.
  void Introduce(const v1::WorkerAssignment& assignment);

  // Sends SIGKILL at once. A worker that is not started yet never is. Of one that has ended, the
  // log is given up soon if the coordinator cannot store it.
  void Kill();

  // Retries failed reports at once. Called when the coordinator answers again.
  void Nudge();

  // True once the process has ended, reported or not.
  bool ended() const;

  // True once the process has ended and everything it wrote has been reported, refused or given up.
  // The run folder can then be removed.
  bool settled() const;

 private:
  RankProcess(const Shared& shared, RankKey key, RunDir dir);
  // As whom the ranks of an assignment run; nothing: as the agent. Waits for the directory of
  // users, not when the rank was killed meanwhile.
  absl::StatusOr<std::optional<UnixUser>> AwaitUser(const v1::WorkerAssignment& assignment) const;
  // Starts the process of an assignment, or notes why there is none. `user`: as whom, if not as the
  // agent, or why nobody runs it.
  void Begin(const v1::WorkerAssignment& assignment,
             const absl::StatusOr<std::optional<UnixUser>>& user);
  bool WasKilled() const;
  bool IsAtOnce() const;
  bool IsEnding() const;
  void Run();  // the thread, once it has begun
  bool LookAtJournal();
  Reporter::Result Report(bool ended);
  void CheckExit();
  std::optional<RankExit> FindExit();  // how the process ended, once it has
  std::string WhyOutOfMemory(const RankExit& exit);
  void SetExit(RankExit exit);
  void DeliverStop();
  std::string OwnAddress() const;
  // Ends what the worker has left running, and removes its cgroup.
  void EndGroup() const;

  const Shared& shared_;
  const RankKey key_;
  const RunDir dir_;
  const std::filesystem::path cgroup_;  // empty: none of its own
  Reporter reporter_;                   // used by the thread only, except for Cancel()
  RecentKills recent_kills_;            // used by the thread only

  mutable Mutex mutex_;
  CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool nudged_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ProcessIdentity> identity_ ABSL_GUARDED_BY(mutex_);
  absl::Duration process_since_ ABSL_GUARDED_BY(mutex_);   // monotonic; here, if adopted
  mutable bool has_page_ ABSL_GUARDED_BY(mutex_) = false;  // a status page, once
  bool is_child_ ABSL_GUARDED_BY(mutex_) = false;          // started by this agent, not adopted
  std::optional<RankExit> exit_ ABSL_GUARDED_BY(mutex_);
  bool killed_ ABSL_GUARDED_BY(mutex_) = false;
  bool at_once_ ABSL_GUARDED_BY(mutex_) = false;  // it had to end at once, if it had not ended yet
  bool beginning_ ABSL_GUARDED_BY(mutex_) =
      false;  // there is no process yet, but there may be soon
  bool settled_ ABSL_GUARDED_BY(mutex_) = false;
  v1::StopRequest stop_ ABSL_GUARDED_BY(mutex_);
  bool stop_delivered_ ABSL_GUARDED_BY(mutex_) = true;
  bool tells_address_ ABSL_GUARDED_BY(mutex_) = false;
  bool knows_next_ ABSL_GUARDED_BY(mutex_) = false;  // its address is in the rendezvous folder

  std::thread thread_;  // last: it uses everything above
};

}  // namespace nsa::agent
