// Answers the coordinator's orders for traces (`nsactl profile`): passes each on to the worker over
// its control socket, waits for the trace in the run folder, and delivers it in parts. While the
// worker records, the coordinator hears once a second that the rank is still at it. The worker is
// asked again and again: a request that is repeated is the same request.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "common/run/process.h"
#include "common/run/run_dir.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "worker/agent/link/link.h"

namespace nsa::agent {

// Thread-safe.
class ProfileRunner {
 public:
  // `link` must outlive this object.
  explicit ProfileRunner(Link* link) : caller_(link) {}
  // Gives up the traces in progress.
  ~ProfileRunner();

  // Begins with an order unless that was done before. `process` is empty when the worker does not
  // run, `dir` when there is no such worker; that is then reported to the coordinator.
  void Start(const v1::ProfileOrder& order, const RunDir& dir,
             std::optional<ProcessIdentity> process);

  // Gives up the orders that the coordinator no longer has, and forgets those that are done.
  void KeepOnly(const v1::HeartbeatResponse& response);

 private:
  using Key = std::pair<std::string, int32_t>;  // profile, rank
  struct Job {
    std::thread thread;
    std::atomic<bool> given_up = false;
    std::atomic<bool> done = false;
  };
  // What the run of one order knows.
  struct Errand {
    v1::ProfileOrder order;
    RunDir dir;
    std::optional<ProcessIdentity> process;
    Fd trace = Fd();             // once it is there
    int64_t sent = 0;            // bytes of it that the coordinator has
    int64_t first_step = -1;     // of the worker's first reply
    absl::Duration first_reply;  // monotonic
    absl::Duration next_sign;    // monotonic: when the coordinator hears of it again
  };
  void Run(Errand errand, Job* job);
  // One attempt; returns whether the errand is done.
  bool Advance(Errand* errand);
  bool AskWorker(Errand* errand);
  bool Upload(Errand* errand);
  bool Report(const Errand& errand, v1::ReportProfileRequest report, int64_t* next_offset);
  bool ReportError(const Errand& errand, const std::string& error);
  bool Wait(absl::Duration time, const Job& job);  // false: the errand is given up

  Caller caller_;
  Mutex mutex_;
  CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<Key, std::unique_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::agent
