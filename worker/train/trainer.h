// Training on one rank, from launch to the last step: the loop, and everything it owns.
//
// All ranks run the same loop and meet in its collectives, so they do the same steps, skip the same
// ones and end after the same one. Losses, gradients and parameters are the same bits on every
// rank, and on every run of the same job at the same world size, resumed or not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/control_socket.h"
#include "common/run_dir.h"
#include "common/status_page.h"
#include "kernels/exec.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/comm.h"
#include "worker/train/data/loader.h"
#include "worker/train/ending.h"
#include "worker/train/folder.h"
#include "worker/train/gpu.h"
#include "worker/train/gpu_step.h"
#include "worker/train/gradient_reducer.h"
#include "worker/train/guards.h"
#include "worker/train/model.h"
#include "worker/train/nccl_comm.h"
#include "worker/train/optimizer.h"
#include "worker/train/parameters.h"
#include "worker/train/stop.h"
#include "worker/train/telemetry/reporter.h"

namespace nsa {

// How long a run goes on trying to write its last checkpoint when that fails, e.g. for a full disk:
// what it has trained is in this process alone. All ranks have the same.
struct LastSavePatience {
  absl::Duration first_wait = absl::Seconds(5);  // doubles
  absl::Duration longest_wait = absl::Minutes(1);
  absl::Duration total = absl::Hours(1);  // of all waits
};

// The wait after so many failures, 1 or more; nothing when patience is at an end. Pure.
std::optional<absl::Duration> WaitAfter(int failures, const LastSavePatience& patience);

struct TrainerOptions {
  v1::WorkerLaunch launch;        // spec with all defaults, device resolved
  std::optional<RunDir> run_dir;  // journal, status page, control socket; none when run by hand
  const Clock* clock = nullptr;
  bool time_kernels = false;  // on a GPU: print the time of every kernel family in the last step
  LastSavePatience last_save;
};

class Trainer {
 public:
  explicit Trainer(TrainerOptions options);
  ~Trainer();

  // Trains to the end. Whatever goes wrong is in the result, which is also the journal's last
  // record.
  v1::WorkerFinished Run();

  // Does the first step several times from the same state, and compares every bit of what it
  // leaves: parameters, moments, loss. On a GPU the repetitions are a step by kernels and two by
  // graph. Writes nothing. Says what was compared; DataLoss names the first tensor that differs.
  absl::StatusOr<std::string> CheckDeterminism();

  // Asks this rank, and so all, to stop. Any thread.
  absl::Status RequestStop(const v1::StopRequest& request) { return stop_.Request(request); }

  // Steps done. Any thread.
  int64_t step() const { return step_.load(); }

 private:
  struct StepResult {
    Agreement agreement;
    v1::StepRecord record;
  };

  // Setting up, in order.
  absl::Status SetUp();
  absl::Status OpenRunDir();
  absl::Status OpenOutDir();
  absl::Status TakeOutDir();
  absl::Status LetGoOfOutDirUnless(const absl::Status& ours);
  absl::Status OpenData();
  absl::Status Meet();
  absl::Status OpenGpu();
  absl::Status MakeModel();
  absl::Status Resume();
  std::string LeaveOrigin();
  absl::Status OpenReporter(int64_t resumed_step);
  absl::Status OpenCheckpoints();
  void ReportStart();

  absl::StatusOr<std::string> StateAfterStep(const Arena& start);

  // The loop.
  absl::StatusOr<Ending> Train();
  absl::StatusOr<std::optional<Ending>> StopBeforeTheFirstStep();
  absl::StatusOr<StepResult> Step(int64_t step);
  absl::Status MicroStep(int32_t micro_step, StepResult* result);
  absl::Status Reduce(StepResult* result);
  absl::Status Update(int64_t step, StepResult* result);
  absl::StatusOr<double> EvalLoss(const Batch& batch);
  bool on_gpu() const { return gpu_ != nullptr; }

  // What of it differs on a GPU, in trainer_gpu.cc.
  absl::StatusOr<StepResult> GpuStepOf(int64_t step);
  absl::StatusOr<double> GpuEvalLoss(const Batch& batch);
  absl::Status ConnectGpus();
  absl::Status MakeGpuStep();
  void JoinGpus(GpuStepOptions* options);
  std::string DeviceText() const;
  std::shared_ptr<float> PinnedFloats(int64_t floats);
  absl::Status CopyToHost(std::span<float> to, std::span<const float> from);
  void PrintKernelTimes() const;
  void ReportMemory(v1::StepRecord* record);
  std::optional<Ending> Observe(const StepResult& result);
  absl::Status Evaluate();
  absl::Status Save();
  absl::Status SaveLast(int failures);
  absl::Status SaveState(const SaveOptions& how);
  absl::Status Finish(Ending* ending);
  absl::StatusOr<bool> DrainTogether(absl::Status* drained);
  void Pause(absl::Duration wait);
  bool Due(int64_t every) const { return every > 0 && step() % every == 0; }

  // Runs `body`, adding its time to `seconds`.
  template <class Body>
  auto Timed(double* seconds, Body body);

  const TrainerOptions options_;
  const v1::WorkerLaunch& launch_;
  const v1::JobSpec& spec_;
  const v1::TrainSpec& train_;
  const ParameterLayout layout_;
  Exec exec_;
  StopState stop_;
  std::atomic<int64_t> step_ = 0;

  // The state that a checkpoint keeps, besides tensors and data cursor.
  v1::CheckpointState state_;

  StatusPage page_;
  Folder out_dir_;  // once it is open, unless it is somebody else's
  std::unique_ptr<DataLoader> data_;
  std::unique_ptr<Comm> comm_;
  std::unique_ptr<Gpu> gpu_;        // null on the CPU
  std::unique_ptr<NcclComm> nccl_;  // null on the CPU and on one GPU
  Arena parameters_;
  Arena gradients_;
  std::optional<Optimizer> optimizer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<GradientReducer> reducer_;   // beside nccl_
  std::unique_ptr<GpuStep> gpu_step_;          // null on the CPU
  int64_t gpu_bytes_ = 0;                      // taken once the first steps are done
  std::atomic<int64_t> unpinned_ = 0;          // checkpoint snapshots that are not in pinned memory
  std::vector<v1::WorkerEvent> early_events_;  // from before there was a reporter
  std::unique_ptr<Reporter> reporter_;
  std::string shown_trouble_;  // its trouble, as the status page has it
  std::unique_ptr<CheckpointWriter> checkpoints_;
  ThroughputGuard throughput_guard_;
  std::unique_ptr<NonfiniteGuard> nonfinite_guard_;
  GateCollapseGuard gate_guard_;
  std::optional<std::string> too_slow_;
  absl::Duration step_began_;
  int64_t synthetic_batches_ = 0;
  int threads_ = 0;
  std::string resumed_from_;
  std::unique_ptr<ControlServer> control_;  // last: its thread uses the members above
};

}  // namespace nsa
