// Records the next whole steps of a running rank when somebody asks for it (`nsactl profile`), and
// writes them as a trace (trace.h).
//
// All ranks record the same steps: each puts ticket() into its report of a step (comm/stop.h), and
// once all have the same ticket they begin with a later step. Nothing that is recorded changes a
// bit of the training. On a GPU the step before the first one is only for preparation: CUPTI is
// started, and the step's CUDA graph is captured again, before and after the recording.
//
// While nothing is recorded, a step costs one look at a number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/run/run_dir.h"
#include "common/run/status_page.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/profile/gpu_recorder.h"
#include "worker/train/profile/host_recorder.h"
#include "worker/train/profile/trace.h"

namespace nsa::train {

// Most steps of one trace.
inline constexpr int32_t kMostTraceSteps = 100;

struct ProfilerOptions {
  StatusPage* page = nullptr;  // borrowed
  int32_t rank = 0;
  std::optional<RunDir> run_dir;  // where traces are written
  std::string file;               // instead, for a rank that was started by hand
  std::vector<MemoryGauge> gauges;
  // On a GPU: opens its recorder, and lets the next step capture its graph again. Empty otherwise.
  std::function<absl::StatusOr<GpuRecorder*>()> open_gpu;
  std::function<void()> capture_again;
  // Nanoseconds of CLOCK_MONOTONIC and of the wall clock.
  std::function<int64_t()> now;
  std::function<int64_t()> unix_now;
};

// Request() is for the control socket's thread, everything else for the training thread.
class Profiler {
 public:
  explicit Profiler(ProfilerOptions options);
  // Waits for a trace that is being written.
  ~Profiler();

  // Options that are known only once the executor is open. Before the first step.
  void SetDevice(std::vector<MemoryGauge> gauges,
                 std::function<absl::StatusOr<GpuRecorder*>()> open_gpu,
                 std::function<void()> capture_again);

  // Asks for a trace. OK also when it is the trace in progress or the last one. InvalidArgument for
  // a wrong id or number of steps; FailedPrecondition when it could not be written. It takes the
  // place of a request that the ranks have not agreed on yet, and of a trace in progress, which
  // ends with the step and is not written: its requester no longer waits. To refuse would let
  // those ranks wait for ever whose trace in progress has ended already.
  absl::Status Request(const v1::ProfileRequest& request);

  // The trace that this rank is asked for and does not record yet, as a number that is exact in
  // fp64; 0: none.
  double ticket();
  // All ranks have the ticket that ticket() returned last: the trace begins with the next step, on
  // a GPU with the one after it.
  void Agreed();

  // A step begins, and the one before it has ended, with its checkpoint and its telemetry.
  void StepBegins(int64_t step);

  // The run ends: writes what has been recorded. `healthy`: no collective and no kernel may be
  // waiting for ever. Waits until it is written.
  void Close(bool healthy);

 private:
  struct Active {
    v1::ProfileRequest request;
    bool prepared = false;  // the step for preparation has begun
    Trace trace;
    TraceHeader header;
    std::unique_ptr<HostRecorder> host;  // while steps are recorded
    GpuRecorder* gpu = nullptr;          // records
    int64_t began = 0;                   // CLOCK_MONOTONIC
  };

  void Prepare();
  void BeginRecording(int64_t step);
  void EndRecording(bool healthy);
  void Write(std::unique_ptr<Active> done);
  // Whether somebody has asked for another trace than the one in progress.
  bool IsReplaced();
  void SetResult(const std::string& id, const absl::Status& result);

  ProfilerOptions options_;
  std::unique_ptr<Active> active_;  // used by the training thread only
  v1::ProfileRequest offered_;      // what ticket() stood for
  std::thread writer_;

  Mutex mutex_;
  std::optional<v1::ProfileRequest> pending_ ABSL_GUARDED_BY(mutex_);
  std::string active_id_ ABSL_GUARDED_BY(mutex_);  // until it is written
  std::string last_id_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::train
