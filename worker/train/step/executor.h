// How one rank computes an optimizer step. There are two ways: on the CPU every call computes at
// once; on a GPU the micro-batches are loaded first, then the whole step runs as one piece.
//
// All ranks call the same methods in the same order: a step contains collectives. One thread at a
// time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/run/status_page.h"
#include "kernels/exec.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/comm/comm.h"
#include "worker/train/model/model.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/state.h"
#include "worker/train/step/matmul_choices.h"

namespace nsa::train {

// All borrowed; they outlive the executor.
struct ExecutorOptions {
  const v1::WorkerLaunch* launch = nullptr;
  const ParameterLayout* layout = nullptr;
  Comm* comm = nullptr;
  StatusPage* page = nullptr;
  const Clock* clock = nullptr;
  int threads = 1;            // of the CPU, for Description()
  bool time_kernels = false;  // for PrintKernelTimes()
};

// How a checkpoint copies the state to host memory; both are empty where it is there already. They
// may be called from the checkpoint's thread.
struct SnapshotAccess {
  std::function<absl::Status(std::span<float> to, std::span<const float> from)> copy;
  std::function<std::shared_ptr<float>(int64_t floats)> allocate;
};

class StepExecutor : public MatmulChooser {
 public:
  // Opens the device and allocates the state. To be called once, before everything but
  // Description().
  virtual absl::Status Open() = 0;

  // A step is AddMicroBatch() for micro-batch 0, 1, …, then CompleteGradients(), then Update().
  // Each adds to `record` what it knows: loss, gradient norm, times. The record has the step and
  // its learning rate from the start, and for CompleteGradients() with data.loss_on: assistant
  // answer_tokens of all ranks: loss and gradient are then those of the mean over these.

  // Takes one micro-batch; the first one begins the step with gradients of zero.
  virtual absl::Status AddMicroBatch(int32_t micro_batch, const TokenBatch& batch,
                                     v1::StepRecord* record) = 0;

  // Completes the gradients of all micro-batches, summed over the ranks. Afterwards the record has
  // the loss, the gradient norm, and skipped_nonfinite where one of them is not finite. On a GPU
  // the update has been made, too: the device decides about it by the same rule.
  virtual absl::Status CompleteGradients(v1::StepRecord* record) = 0;

  // The mean loss of every sequence of the step on this rank, of its tokens of the sequence, in the
  // order of AddMicroBatch(), after CompleteGradients(). Only with data.mix; otherwise empty.
  virtual std::vector<double> SequenceLosses() const = 0;

  // Updates the parameters, unless the ranks have agreed that the step is not `finite`.
  virtual absl::Status Update(bool finite, v1::StepRecord* record) = 0;

  // How many batches EvalLoss() takes at most.
  virtual int32_t eval_batches_at_once() const = 0;

  // Mean loss of batches that have the size of a micro-batch, without gradients.
  virtual absl::StatusOr<double> EvalLoss(std::span<const TokenBatch> batches) = 0;

  // Measures how much of the exact attention the layers keep (Model::AuditAttention), right after
  // Update(); AddStatistics() then adds it to the record. Not part of a captured step.
  virtual absl::Status Audit(int64_t step) = 0;

  // The hash of all parameters (kernels/optimizer/parameters_hash.h), after Update(). On a GPU it
  // waits for the device; not part of a captured step. Where each rank has fp32 weights of its
  // share only, it is a collective: every rank gets the hash of all shares if its bf16 copy matches
  // the owners' fp32 weights, or its own where it has no others; if not, its hash differs.
  virtual absl::StatusOr<uint64_t> ParametersHash() = 0;

  // Adds statistics of the layers, memory and fallbacks to the record of a finished step.
  virtual void AddStatistics(v1::StepRecord* record) = 0;

  // The state between two steps, and what copies and kernels on it run with.
  virtual ModelState& state() = 0;
  virtual Exec exec() const = 0;
  virtual SnapshotAccess snapshot_access() = 0;

  // For a checkpoint, where state().sharded: copies the elements `wanted` of a part of the state,
  // whichever rank has them, to host memory. Not `local`: a collective, every rank calls it for the
  // same part, with a `wanted` of its own, which may be empty. Pieces of a few MiB are on their way
  // at a time.
  virtual absl::Status ReadState(StatePart part, const Slice& wanted, bool local,
                                 std::span<float> to) = 0;

  // A fast path between the ranks that the device's libraries did not take when they connected, as
  // text; empty if there is none.
  virtual std::string SlowPath() const { return ""; }

  // The device and its libraries, human-readable.
  virtual std::string Description() const = 0;

  // On a GPU: lets the next step be captured again (GpuStep::CaptureAgain()). Between two steps.
  virtual void CaptureAgain() {}

  // Steps that were captured into a CUDA graph.
  virtual int64_t graph_captures() const = 0;

  // With time_kernels on a GPU: prints the last step's time by kernel family.
  virtual void PrintKernelTimes(int64_t step) const = 0;
};

// How many targets predict something: all but those that are negative.
int64_t PredictedOf(std::span<const int32_t> targets);

// All positions of a step by those that its loss is a mean of; 1 where they are the same, 0 without
// any: the loss and the gradient are then 0.
double GradientWeight(const v1::JobSpec& spec, const v1::StepRecord& record);

// Appends the mean of every `tokens` token losses to `means`.
void AppendSequenceMeans(std::span<const float> token_losses, int32_t tokens,
                         std::vector<double>* means);

// Where a part of the state is.
const Arena& PartOf(const ModelState& state, StatePart part);

// "cpu, 4 threads".
std::string CpuDescription(int threads);

// Runs `body` and adds the time that it takes to `seconds`.
template <class Body>
auto Timed(const Clock& clock, double* seconds, Body body) {
  const absl::Duration begin = clock.Monotonic();
  auto result = body();
  *seconds += absl::ToDoubleSeconds(clock.Monotonic() - begin);
  return result;
}

std::unique_ptr<StepExecutor> MakeCpuExecutor(const ExecutorOptions& options);
std::unique_ptr<StepExecutor> MakeGpuExecutor(const ExecutorOptions& options);

}  // namespace nsa::train
