// Answers the coordinator's requests for stack dumps. Each dump runs in a separate process
// (`nsa-agent dump`), so that a dump that hangs or crashes harms nothing else. Several can run at
// once. A dump is killed after five seconds.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/run/process.h"
#include "common/run/run_dir.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "worker/agent/link/link.h"
#include "worker/agent/options.h"

namespace nsa::agent {

// Thread-safe.
class DumpRunner {
 public:
  // `options` and `link` must outlive this object.
  DumpRunner(const AgentOptions& options, Link* link);
  // Ends dumps in progress.
  ~DumpRunner();

  // Starts a dump unless it is already running or was delivered. `process` is empty when the worker
  // does not run, `dir` when there is no such worker; the report then says so.
  void Start(const v1::DumpRequest& request, const RunDir& dir,
             std::optional<ProcessIdentity> process);

  // Forgets dumps that are done and that the coordinator no longer asks for.
  void KeepOnly(const v1::HeartbeatResponse& response);

 private:
  struct Job {
    std::thread thread;
    std::atomic<bool> done = false;
    std::atomic<bool> delivered = false;
  };
  void Run(const v1::DumpRequest& request, const RunDir& dir,
           const std::optional<ProcessIdentity>& process, Job* job);
  v1::ReportDumpRequest Dump(const v1::DumpRequest& request, const RunDir& dir,
                             const std::optional<ProcessIdentity>& process);
  void RunProgram(const RunDir& dir, const ProcessIdentity& process, v1::ReportDumpRequest* report);
  bool Deliver(const v1::ReportDumpRequest& report);
  bool ending();

  const AgentOptions& options_;
  Caller caller_;
  Mutex mutex_;
  CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::unique_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::agent
