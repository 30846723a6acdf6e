// One worker of one gang on this machine, from its run folder to its last reported byte.
//
// The process belongs to nobody: it is started in a session of its own, outlives the agent, and is
// adopted again from its run folder by identity. A thread of its own forwards journal and log,
// passes stop requests on and notices the end, so that neither a slow coordinator nor a stopped
// worker delays the agent's heartbeat.
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
#include "worker/agent/reporter.h"

namespace nsa::agent {

// Thread-safe.
class RankProcess {
 public:
  // What all workers of an agent share; outlives them.
  struct Shared {
    const AgentOptions& options;
    v1::FleetService::StubInterface* stub;
    std::function<void()> on_change;  // called when a worker starts to run or ends; must not block
  };

  // Starts a worker. Always returns one: what went wrong is in its observation.
  static std::unique_ptr<RankProcess> Start(const Shared& shared,
                                            const v1::WorkerAssignment& assignment);

  // Takes over a run folder that an earlier agent left; nullptr when nothing was started there.
  static std::unique_ptr<RankProcess> Adopt(const Shared& shared, const RankKey& key,
                                            const RunDir& dir);

  // Ends the reporting, at once. The process lives on.
  ~RankProcess();

  const RankKey& key() const { return key_; }
  const RunDir& dir() const { return dir_; }
  // The process, while it lives and is known.
  std::optional<ProcessIdentity> identity() const;

  // Never waits for the worker or the coordinator.
  v1::WorkerObservation Observe() const;

  // Asks for a stop, once and again until the worker has heard it. STOP_MODE_NOW kills.
  void SetStop(const v1::StopRequest& stop);

  // SIGKILL, at once.
  void Kill();

  // Tries at once what failed before: the coordinator answers again.
  void Nudge();

  // True once the process has ended and everything it wrote has been reported or refused: the run
  // folder is needed no more.
  bool settled() const;

 private:
  struct Exit {
    int code = -1;
    int signal = 0;
    bool killed_by_agent = false;
    std::string start_error;
  };

  RankProcess(const Shared& shared, RankKey key, RunDir dir);
  void Run();  // the thread
  bool LookAtJournal();
  Reporter::Result Report(bool ended);
  void CheckExit();
  std::optional<Exit> FindExit();  // how the process ended, once it has
  void SetExit(Exit exit);
  void DeliverStop();
  std::optional<Exit> LoadExit() const;
  void SaveExit(const Exit& exit) const;

  const Shared& shared_;
  const RankKey key_;
  const RunDir dir_;
  Reporter reporter_;  // of the thread, but for Cancel()

  mutable Mutex mutex_;
  CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool nudged_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ProcessIdentity> identity_ ABSL_GUARDED_BY(mutex_);
  bool is_child_ ABSL_GUARDED_BY(mutex_) = false;  // of this agent; an adopted one is not
  std::optional<Exit> exit_ ABSL_GUARDED_BY(mutex_);
  bool killed_ ABSL_GUARDED_BY(mutex_) = false;
  bool settled_ ABSL_GUARDED_BY(mutex_) = false;
  v1::StopRequest stop_ ABSL_GUARDED_BY(mutex_);
  bool stop_delivered_ ABSL_GUARDED_BY(mutex_) = true;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace nsa::agent
