// The agent of one machine. Every half second it reports to the coordinator what is running here;
// the reply lists what should be running, and the agent starts and ends workers accordingly. While
// the coordinator cannot be reached, all workers keep running.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/run/file_lock.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "worker/agent/dump/dump_runner.h"
#include "worker/agent/inventory.h"
#include "worker/agent/options.h"
#include "worker/agent/rank_process.h"

namespace nsa::agent {

class Agent {
 public:
  // Locks the state folder, adopts the workers that an earlier agent left behind and starts the
  // heartbeat. AlreadyExists when another agent holds the state folder. Succeeds even when the
  // coordinator cannot be reached. The secret of this node is the file node.secret in the state
  // folder (mode 0600), made at the first start.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(const AgentOptions& options);

  // Ends the agent; its workers keep running, for the next agent to adopt.
  ~Agent();

 private:
  Agent(const AgentOptions& options, FileLock lock, std::shared_ptr<grpc::Channel> channel);
  void AdoptAll();
  void HeartbeatLoop();  // the thread
  absl::Status Join();
  absl::Status Heartbeat();
  // Calls the coordinator; the destructor cancels the call.
  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response* response);
  void NoteReachable(const absl::Status& status);
  v1::HeartbeatRequest Observe() const;
  void Converge(const v1::HeartbeatResponse& desired);
  void Keep(const v1::WorkerAssignment& assignment);
  void RemoveUndesired(const v1::HeartbeatResponse& desired);
  void StartDumps(const v1::HeartbeatResponse& desired);
  // Waits until `next` (RealClock().Monotonic()), a change among the workers, or the end; false at
  // the end.
  bool WaitUntil(absl::Duration next);
  void OnChange();

  const AgentOptions options_;
  const FileLock lock_;
  const std::shared_ptr<grpc::Channel> channel_;  // also used by stub_
  const std::unique_ptr<v1::FleetService::StubInterface> stub_;
  const std::string incarnation_;
  const RankProcess::Shared shared_;
  Inventory inventory_;
  DumpRunner dumps_;

  // Used by the heartbeat's thread only.
  std::map<RankKey, std::unique_ptr<RankProcess>> ranks_;
  std::string epoch_;  // of the coordinator that last answered
  bool reachable_ = true;
  bool joined_ = false;  // the coordinator knows the secret

  Mutex mutex_;
  CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* in_flight_ ABSL_GUARDED_BY(mutex_) = nullptr;

  std::thread thread_;
};

}  // namespace nsa::agent
