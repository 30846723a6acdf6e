// A whole optimizer step on a GPU: zero the gradients, forward and backward of every micro-batch,
// sum over the ranks, norm, decision, update. The host enqueues all of it and waits once.
//
// Where the optimizer's state is divided over the ranks (ModelState::sharded), a rank gets the sums
// of its share only, all ranks add up its squares, each updates its share, and then sends the new
// bf16 weights to the others. Where the gradients are divided, too (ModelState::window), the sums
// over the ranks are those of each pass, part by part while backward continues, and a rank adds up
// those of its share. Where the weights are divided, too (ModelState::weights), those of each part
// are gathered while the part before it is computed with, and none are sent after the update.
//
// The device decides whether to update: when the loss or the norm is not finite, parameters and
// moments stay as they are. The device also computes the clipping factor, without the host.
//
// With `graph` the second step is captured into a CUDA graph, which it and later steps launch (the
// first step loads kernels and chooses algorithms). The step is captured again when a micro-batch
// comes with documents instead of without, or the reverse. A step that cannot be captured runs
// kernel by kernel, with the same bits, and counts as a fallback.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/run/status_page.h"
#include "kernels/cuda/device.h"
#include "kernels/optimizer/step.h"
#include "worker/train/comm/gradient_reducer.h"
#include "worker/train/comm/nccl_comm.h"
#include "worker/train/gpu/gpu.h"
#include "worker/train/gpu/gpu_progress.h"
#include "worker/train/model/state.h"

namespace nsa::train {

struct GpuStepOptions {
  // All borrowed.
  Gpu* gpu = nullptr;
  ModelState* state = nullptr;  // on the GPU
  NcclComm* nccl = nullptr;     // sums gradients and loss over the ranks; null for one rank
  bool bf16_gradients = false;  // they travel in bf16
  StatusPage* page = nullptr;

  int32_t micro_batches = 1;  // as many as the state's model holds
  int32_t world_size = 1;
  float gradient_scale = 1;  // 1 / positions of a step over all ranks
  bool weighted = false;     // Run() gets the weights of LossWeights
  bool graph = true;
  // Sum the gradients of a part over the ranks while backward continues. Not where backward
  // exchanges heads with other ranks (context parallelism): then all are summed after it, so that
  // no two operations of NCCL wait for other ranks at the same time.
  // Divided gradients have to be summed during it, and divided weights gathered: then on the stream
  // of the exchanges, in their order.
  bool sums_in_backward = true;

  bool in_order = false;      // kernels run one at a time
  bool time_kernels = false;  // for KernelTimes(); implies in_order

  // For tests: in this step a kernel that never ends runs before each forward. 0: in no step.
  int64_t spin_at_step = 0;
};

// Of a step whose loss is the mean over some of its positions (data.loss_on).
struct LossWeights {
  float gradient = 1;             // all positions of the step by those
  std::span<const float> passes;  // [micro_batches]: of the losses of this rank; 1 for all equal
};

class GpuStep {
 public:
  static absl::StatusOr<std::unique_ptr<GpuStep>> Create(const GpuStepOptions& options);

  // What the kernels of steps, and of evaluations between steps, run with.
  const Exec& exec() const { return exec_; }

  struct Result {
    double loss = 0;  // mean over all ranks' tokens
    double norm = 0;  // of the gradients, before clipping
    bool skipped = false;
    double forward_seconds = 0, backward_seconds = 0, reduce_seconds = 0, optimizer_seconds = 0;
  };

  // Runs step `step` (1-based) on the micro-batches that the model has loaded, and waits for its
  // end. `weights` are those of GpuStepOptions::weighted.
  absl::StatusOr<Result> Run(int64_t step, double learning_rate, const LossWeights& weights = {});

  // Enqueue the kernels of an evaluation between these two calls.
  void BeginEvaluation(Phase phase) {
    progress_->Begin();
    progress_->EnterPhase(phase, 0);
  }
  absl::Status Wait();

  // Enqueues GradientReducer::SendPiece() between them; only with several ranks.
  absl::Status SendPiece(const void* from, void* to, int64_t bytes, int root) {
    return reducer_->SendPiece(exec_.stream, from, to, bytes, root);
  }

  // Times of the last step, with `time_kernels`.
  std::map<std::string, GpuProgress::KernelTime> KernelTimes() const {
    return progress_->KernelTimes(launched_);
  }

  // Lets the next step be captured again: a profiler sees the single kernels of those graphs only
  // that it saw being made. No step may be running.
  void CaptureAgain() { graph_ = {}; }

  // Whether a step has run. Later steps load no kernels, choose no algorithms and allocate nothing.
  bool warm() const { return runs_ > 0; }

  // Number of steps that ran kernel by kernel because capturing failed, and why it failed.
  int64_t graph_fallbacks() const { return graph_fallbacks_; }
  const std::string& graph_problem() const { return graph_problem_; }
  int64_t captures() const { return captures_; }
  int64_t graph_nodes() const { return graph_.nodes(); }

 private:
  explicit GpuStep(const GpuStepOptions& options) : options_(options) {}
  absl::Status Enqueue(int64_t step);
  absl::Status SendInput(int64_t step, double learning_rate, const LossWeights& weights);
  absl::Status EnqueueMicroBatches(int64_t step);
  absl::Status EnqueueBackward(int32_t micro);
  absl::Status BackwardToShares(int32_t micro);
  absl::Status WaitForWindows();
  absl::Status OpenWindow(size_t part);
  absl::Status SumWindow(bool add);
  absl::Status GatherBefore(int32_t part, Model::Pass pass);
  absl::Status Gather(int32_t part);
  absl::Status EnqueueUpdate();
  bool SumsInBackward() const { return options_.sums_in_backward && warm(); }
  absl::Status FinishSums();
  absl::Status EnqueueNorm(float* norm);
  absl::Status Capture(int64_t step);

  const GpuStepOptions options_;
  Exec exec_;
  std::unique_ptr<GradientReducer> reducer_;  // null for one rank; destroyed after the graph
  std::unique_ptr<GpuProgress> progress_;
  cuda::DeviceMemory device_;   // StepInput, StepOutput
  cuda::PinnedMemory host_;     // the same on the host
  cuda::DeviceMemory weights_;  // float [micro_batches], of the losses; only if weighted
  cuda::PinnedMemory weights_on_host_;
  cuda::DeviceMemory squares_;  // double [ranks]: sums of squares of the shares of the gradients
  cuda::Graph graph_;
  std::vector<bool> graph_kind_;
  int64_t runs_ = 0;
  bool launched_ = false;  // the last step ran as a graph
  int64_t captures_ = 0;
  int64_t graph_fallbacks_ = 0;
  std::string graph_problem_;
};

}  // namespace nsa::train
