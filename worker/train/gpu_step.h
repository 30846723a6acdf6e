// A whole optimizer step on a GPU: gradients from zero, every micro-batch forward and backward, the
// reduction over ranks, the norm, the decision, AdamW. The host enqueues it and waits once.
//
// The decision is the device's: a step whose loss or norm is not finite leaves parameters and
// moments as they are, and what clipping multiplies with never comes to the host before it is used.
//
// With `graph` the step is captured into a CUDA graph the second time it runs (the first time loads
// kernels and chooses algorithms) and launched as one from then on; it is captured again when the
// micro-batches change in kind (with or without documents). A step that could not be captured runs
// kernel by kernel, with the same bits, and is counted as a fallback.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_page.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/step.h"
#include "worker/train/gpu.h"
#include "worker/train/gpu_progress.h"
#include "worker/train/model.h"
#include "worker/train/optimizer.h"
#include "worker/train/parameters.h"

namespace nsa {

struct GpuStepOptions {
  // All borrowed.
  Gpu* gpu = nullptr;
  Model* model = nullptr;  // on the GPU, for `micro_batches`
  Optimizer* optimizer = nullptr;
  Arena* parameters = nullptr;
  Arena* gradients = nullptr;  // with kGradientExtras
  StatusPage* page = nullptr;

  int32_t micro_batches = 1;
  int32_t world_size = 1;
  float gradient_scale = 1;  // 1 / predicted tokens of a step over all ranks
  bool graph = true;

  // Called when a step is about to be enqueued or captured, whatever became of the one before; may
  // be empty.
  std::function<void()> begin;

  // Sums over the ranks what it is given (gradients and, behind them, the loss), in stream order;
  // may be empty for one rank. `after_part` is called in the last micro-batch's backward
  // (Model::AfterPart), where a reduction may begin that `reduce` then completes.
  std::function<absl::Status(const Exec& exec, std::span<float> values)> reduce;
  Model::AfterPart after_part;

  // Calls `look` until it is true or an error, as one does who also watches the other ranks; may be
  // empty for one rank.
  std::function<absl::Status(const std::function<absl::StatusOr<bool>()>& look)> wait;

  bool in_order = false;      // no kernel beside another
  bool time_kernels = false;  // for KernelTimes(); in order too

  // For tests: a kernel that never ends, in the first layer's forward of this step. 0: never.
  int64_t spin_at_step = 0;
};

class GpuStep {
 public:
  // Floats behind the gradients: the loss, which is reduced with them.
  static constexpr int64_t kGradientExtras = 16;

  static absl::StatusOr<std::unique_ptr<GpuStep>> Create(const GpuStepOptions& options);

  // What a step's kernels run with; also for evaluations between steps, followed by Wait().
  const Exec& exec() const { return exec_; }

  struct Result {
    double loss = 0;  // mean over all ranks' tokens
    double norm = 0;  // of the gradients, before clipping
    bool skipped = false;
    double forward_seconds = 0, backward_seconds = 0, reduce_seconds = 0, optimizer_seconds = 0;
  };

  // Runs step `step` (1-based) with the micro-batches that the model has been given, and waits.
  absl::StatusOr<Result> Run(int64_t step, double learning_rate);

  // Before and after an evaluation's kernels.
  void BeginOther(Phase phase) {
    progress_->Begin();
    progress_->EnterPhase(phase, 0);
  }
  absl::Status Wait();

  // Of the last step, with `time_kernels`.
  std::map<std::string, GpuProgress::KernelTime> KernelTimes() const {
    return progress_->KernelTimes(launched_);
  }

  // Whether a step has run: from then on nothing is loaded, chosen or allocated any more.
  bool warm() const { return runs_ > 0; }

  // Steps that were not launched as a graph although they should have been, and why the last.
  int64_t graph_fallbacks() const { return graph_fallbacks_; }
  const std::string& graph_problem() const { return graph_problem_; }
  int64_t captures() const { return captures_; }
  int64_t graph_nodes() const { return graph_.nodes(); }

 private:
  explicit GpuStep(const GpuStepOptions& options) : options_(options) {}
  absl::Status Enqueue(int64_t step);
  absl::Status EnqueueMicroBatches(int64_t step);
  absl::Status EnqueueUpdate();
  absl::Status Capture(int64_t step);

  const GpuStepOptions options_;
  Exec exec_;
  std::unique_ptr<GpuProgress> progress_;
  cuda::DeviceMemory device_;  // StepInput, StepOutput
  cuda::PinnedMemory host_;    // the same
  cuda::Graph graph_;
  std::vector<bool> graph_kind_;
  int64_t runs_ = 0;
  bool launched_ = false;  // the last one as a graph
  int64_t captures_ = 0;
  int64_t graph_fallbacks_ = 0;
  std::string graph_problem_;
};

}  // namespace nsa
