// The agent of one machine. Every half second it reports to the coordinator what is running here;
// the reply lists what should be running, and the agent starts and ends workers accordingly. While
// the coordinator cannot be reached, all workers keep running.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/run/file_lock.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "worker/agent/dump/dump_runner.h"
#include "worker/agent/inventory.h"
#include "worker/agent/link/link.h"
#include "worker/agent/link/silence.h"
#include "worker/agent/options.h"
#include "worker/agent/profile/profile_runner.h"
#include "worker/agent/rank_process.h"

namespace nsa::agent {

class Agent {
 public:
  // Locks the state folder, adopts the workers that an earlier agent left behind and starts the
  // heartbeat. AlreadyExists when another agent holds the state folder. Succeeds even when the
  // coordinator cannot be reached. The secret of this node is the file node.secret in the state
  // folder (mode 0600), made at the first start.
  //
  // Why an agent has nothing more to do: this process should end.
  enum class End : uint8_t {
    // The coordinator accepts connections, but fresh ones have not helped either (link/silence.h):
    // the process should be started again.
    kLost,
    // The allocation that it belongs to is over, or its machines are being taken, and no worker
    // runs.
    kAllocationOver,
  };

  // `ended` is called once, by a thread of the agent. It must not destroy the agent.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(const AgentOptions& options,
                                                      std::function<void(End)> ended);

  // Ends the agent; its workers keep running, for the next agent to adopt.
  ~Agent();

  // For an agent with an allocation, whose machines are being taken: asks the workers to stop with
  // a checkpoint and goes on until the coordinator knows how they ended.
  void Leave();

 private:
  Agent(const AgentOptions& options, FileLock lock, std::unique_ptr<Link> link,
        std::function<void(End)> ended);
  void AdoptAll();
  void HeartbeatLoop();  // the thread
  absl::Status Join();
  absl::Status Heartbeat();
  bool IsLeaving();
  void StopWorkers();
  // Whether the workers' end, which Leave() asked for, has been reported.
  bool HasLeft(const v1::HeartbeatRequest& reported);
  // Asks the workers to stop with a checkpoint; ends those that have not after a while, and then
  // the agent.
  void EndAllocation();
  void NoteReachable(const absl::Status& status);
  // Replaces a connection that brings no answer. False when the agent should end.
  bool TendLink(const absl::Status& status);
  // Uses renewed certificates without a restart.
  void FollowCertificates();
  // Opens a fresh connection with the files of tls as they are now. False if these are wrong, half
  // of a renewal or have ended: the present connection stays, and why is logged once, after `what`.
  // An agent does not end for that: another start would fail, and nobody would look for other
  // files.
  bool ReopenLink(std::string_view what);
  SilenceStep NextStepNow();
  v1::HeartbeatRequest Observe() const;
  void Converge(const v1::HeartbeatResponse& desired);
  // Whether the workers here were started under another job store than the one that answered. If
  // there are none, its store is this agent's from now on.
  bool AreOfAnotherStore(const v1::HeartbeatResponse& answer);
  // What becomes of the workers of another store: nothing, unless they are to end.
  void KeepOthers(const v1::HeartbeatResponse& answer);
  void Keep(const v1::WorkerAssignment& assignment);
  void RemoveUndesired(const v1::HeartbeatResponse& desired);
  void StartDumps(const v1::HeartbeatResponse& desired);
  void StartProfiles(const v1::HeartbeatResponse& desired);
  // Waits until `next` (RealClock().Monotonic()), a change among the workers, or the end; false at
  // the end.
  bool WaitUntil(absl::Duration next);
  void OnChange();

  const AgentOptions options_;
  const FileLock lock_;
  const std::unique_ptr<Link> link_;
  const std::function<void(End)> ended_;
  const std::string incarnation_;
  const std::string boot_id_;
  const RankProcess::Shared shared_;
  Inventory inventory_;
  DumpRunner dumps_;
  ProfileRunner profiles_;

  // Used by the heartbeat's thread only.
  std::map<RankKey, std::unique_ptr<RankProcess>> ranks_;
  std::string epoch_;          // of the coordinator that last answered
  bool keeps_others_ = false;  // its workers are of another store, which has been logged
  absl::Duration over_since_ = absl::InfiniteDuration();  // the allocation; RealClock().Monotonic()
  bool reachable_ = true;
  bool joined_ = false;  // the coordinator knows the secret
  bool over_ = false;    // nothing more is to be done for the allocation
  absl::Duration answered_at_ = RealClock().Monotonic();
  absl::Duration opened_at_ = answered_at_;  // the connection
  absl::Duration look_at_certificates_ = answered_at_;
  std::string certificates_problem_;  // why those that are there now cannot be used
  int fresh_ = 0;                     // connections opened since the last answer

  Caller caller_;  // the heartbeat's
  Mutex mutex_;
  CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace nsa::agent
