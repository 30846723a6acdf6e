// Training on one rank, from the launch to the last step: the loop, and everything that it owns.
// executor.h computes a step, on the CPU or on a GPU.
//
// All ranks run the same loop and the same collectives, so they do the same steps, skip the same
// updates and end after the same step. Losses, gradients and parameters are the same bits on every
// rank, and in every run of the same job at the same world size, resumed or not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/run/control_socket.h"
#include "common/run/run_dir.h"
#include "common/run/status_page.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/checkpoint/upload/uploader.h"
#include "worker/train/comm/comm.h"
#include "worker/train/comm/stop.h"
#include "worker/train/data/loader.h"
#include "worker/train/folder.h"
#include "worker/train/model/parameters.h"
#include "worker/train/profile/profiler.h"
#include "worker/train/score/job_samples.h"
#include "worker/train/step/ending.h"
#include "worker/train/step/executor.h"
#include "worker/train/step/mix_shares.h"
#include "worker/train/step/out_dir_ranks.h"
#include "worker/train/step/resume.h"
#include "worker/train/step/saver.h"
#include "worker/train/step/step_guards.h"
#include "worker/train/telemetry/reporter.h"

namespace nsa::train {

struct TrainerOptions {
  v1::WorkerLaunch launch;        // spec with all defaults, device resolved
  std::optional<RunDir> run_dir;  // journal, status page, control socket; none when run by hand
  const Clock* clock = nullptr;
  ListenAt listen;            // where this rank waits for the rank before it
  bool time_kernels = false;  // on a GPU: print the time of every kernel family in the last step
  std::string profile_file;   // by hand: a trace of three steps near the beginning; empty: none
  LastSavePatience last_save;
};

class Trainer {
 public:
  explicit Trainer(TrainerOptions options);
  ~Trainer();

  // Trains until the run ends. Returns how it ended, which is also the journal's last record.
  v1::WorkerFinished Run();

  // Runs the first step several times from the same state and compares every bit of the results:
  // parameters, moments, and what the step computes (record::kComputed). On a GPU the first time
  // runs kernel by kernel, the others as a graph. Writes nothing. Returns a text that says what was
  // compared. DataLoss names the first tensor, or number, that differs.
  absl::StatusOr<std::string> CheckDeterminism();

  // Asks this rank to stop, and through it all ranks. Any thread.
  absl::Status RequestStop(const v1::StopRequest& request) { return stop_.Request(request); }

  // Asks this rank for a trace of its next steps; they begin once all ranks have the same request
  // (profile/profiler.h). Any thread.
  absl::Status RequestProfile(const v1::ProfileRequest& request) {
    return profiler_.Request(request);
  }

  // Number of steps done. Any thread.
  int64_t step() const { return step_.load(); }

 private:
  struct StepResult {
    Agreement agreement;
    v1::StepRecord record;
  };

  // A validation of some batches.
  struct EvalSum {
    double mean = 0;  // the losses over all positions; those that predict nothing count as 0
    int64_t predicted = 0;
    int64_t positions = 0;
    // Over the predicted tokens.
    double loss() const {
      return predicted == 0
                 ? 0.0
                 : mean * (static_cast<double>(positions) / static_cast<double>(predicted));
    }
  };

  // Setting up, in order.
  absl::Status SetUp();
  absl::Status OpenRunDir();
  absl::Status OpenOutDir();
  absl::Status AgreeOnData();
  absl::StatusOr<std::unique_ptr<DataLoader>> LoadData(const std::string& fingerprint);
  absl::Status OpenData(const std::optional<std::string>& fingerprint);
  void ReportNotes();
  absl::Status KeepHeldOut();
  absl::Status ConnectRanks();
  absl::Status OpenExecutor();
  void OpenProfiler();
  absl::Status Resume();
  absl::Status AgreeOnAlgorithms();
  absl::Status LoadFrom(const ResumePoint& point, HostState* host);
  absl::Status LoadWeights(const ResumePoint& point, HostState* host);
  absl::Status CheckOwnState(const v1::CheckpointState& state);
  std::string AdaptForkedState();
  absl::Status LockOutDir();
  absl::Status OpenCheckpoints();
  absl::Status OpenUploader();
  absl::Status CloseOutDirUnlessOk(const absl::Status& status);
  absl::Status OpenReporter(int64_t resumed_step);
  std::string DeviceText() const;
  void ReportStart();

  // The loop.
  absl::StatusOr<Ending> Train();
  absl::StatusOr<std::optional<Ending>> StopBeforeTheFirstStep();
  absl::StatusOr<StepResult> Step(int64_t step);
  absl::Status CountAnswers(int64_t mine, v1::StepRecord* record);
  absl::StatusOr<Batch> NextBatch(int32_t micro_batch, v1::StepRecord* record);
  absl::StatusOr<Agreement> Agree(v1::StepRecord* record);
  absl::Status Audit(int64_t step);
  bool EndsAfter(int64_t step, const Agreement& agreement) const;
  absl::Status HashParameters(v1::StepRecord* record);
  std::optional<Ending> Observe(const StepResult& result);
  void Complete(v1::StepRecord* record);
  absl::Status Evaluate();
  absl::StatusOr<std::vector<EvalSum>> EvalSums();
  using BatchOf = std::function<absl::StatusOr<Batch>(int32_t index)>;
  absl::StatusOr<EvalSum> Validate(int32_t batches, const BatchOf& batch_of);
  absl::StatusOr<EvalSum> ValidateOn(int32_t begin, int32_t count, const BatchOf& batch_of);
  absl::Status WriteSamples();
  void ReportSamples();
  absl::Status Save(bool last);
  Snapshot TakeSnapshot();

  // The end.
  absl::StatusOr<Ending> Finish(const Ending& ending);
  absl::Status AwaitUpload(const Ending& ending);
  Ending WithAdvice(Ending ending);
  void Report(const v1::WorkerFinished& record);

  absl::StatusOr<std::string> StateAfterStep(const Arena& start);

  const TrainerOptions options_;
  const v1::WorkerLaunch& launch_;
  const v1::JobSpec& spec_;
  const v1::TrainSpec& train_;
  const ParameterLayout layout_;
  StopState stop_;
  std::atomic<int64_t> step_ = 0;

  // What a checkpoint contains besides the tensors and the data cursor.
  v1::CheckpointState state_;
  std::string resumed_from_;
  std::string initialized_from_;  // the checkpoint whose weights the run began with

  StatusPage page_;
  Folder out_dir_;  // invalid before it is opened, and when it belongs to another job
  OutDirRanks out_dir_ranks_;
  HubCommits hub_commits_;
  std::unique_ptr<DataLoader> data_;
  MixShares mix_shares_;
  int64_t synthetic_batches_ = 0;
  int threads_ = 0;
  std::unique_ptr<Comm> comm_;
  std::atomic<bool> peer_lost_ = false;  // while the data was read
  std::unique_ptr<StepExecutor> executor_;
  std::vector<v1::WorkerEvent> early_events_;  // events before the reporter was opened
  std::unique_ptr<Reporter> reporter_;
  std::string shown_error_;            // the telemetry error that the status page shows
  std::optional<JobSamples> samples_;  // on rank 0, after the first validation; borrows executor_
  std::string sample_error_;           // the last one that an event reported
  std::optional<Uploader> uploader_;   // on rank 0 of a job with a checkpoint_url
  std::unique_ptr<CheckpointWriter> checkpoints_;
  std::optional<Saver> saver_;  // set together with checkpoints_
  std::optional<StepGuards> guards_;
  bool parameters_differ_ = false;  // has been reported
  absl::Duration step_began_;
  Profiler profiler_;
  std::unique_ptr<ControlServer> control_;  // last: its thread uses the members above
};

}  // namespace nsa::train
