#include "worker/train/gpu_step.h"

#include <algorithm>

#include "common/status.h"
#include "kernels/cuda/kernels.h"
#include "kernels/nn/copy.h"
#include "kernels/nn/global_norm.h"

namespace nsa {
namespace {

constexpr int64_t kOutputOffset = 64;
constexpr int64_t kBytes = 128;
static_assert(sizeof(cuda::StepInput) <= kOutputOffset &&
              sizeof(cuda::StepOutput) <= kBytes - kOutputOffset);

cuda::StepInput* InputOf(void* memory) { return static_cast<cuda::StepInput*>(memory); }
cuda::StepOutput* OutputOf(void* memory) {
  return reinterpret_cast<cuda::StepOutput*>(static_cast<std::byte*>(memory) + kOutputOffset);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuStep>> GpuStep::Create(const GpuStepOptions& options) {
  auto step = std::unique_ptr<GpuStep>(new GpuStep(options));
  const int64_t size = options.gradients->layout().size();
  NSA_RETURN_IF_ERROR(options.gpu->TakeScratch(
      std::max(options.model->scratch_bytes(), cuda::GlobalNormWorkspaceBytes(size))));
  NSA_ASSIGN_OR_RETURN(step->device_, cuda::DeviceMemory::Allocate(kBytes, "a step's numbers"));
  NSA_ASSIGN_OR_RETURN(step->host_, cuda::PinnedMemory::Allocate(kBytes, "a step's numbers"));
  NSA_ASSIGN_OR_RETURN(step->progress_, GpuProgress::Create(options.page, options.time_kernels,
                                                            options.micro_batches));
  step->exec_ = step->progress_->Watch(options.gpu->exec());
  // What runs side by side has no time of its own.
  if (options.in_order || options.time_kernels) step->exec_.side = nullptr;
  GpuProgress* const progress = step->progress_.get();
  options.model->set_on_layer([progress](int32_t layer) { progress->EnterLayer(layer); });
  return step;
}

absl::Status GpuStep::EnqueueMicroBatches(int64_t step) {
  if (options_.begin) options_.begin();
  NSA_RETURN_IF_ERROR(Zero(exec_, options_.gradients->with_extras()));
  for (int32_t micro = 0; micro < options_.micro_batches; ++micro) {
    progress_->EnterPhase(Phase::kForward, micro);
    if (step == options_.spin_at_step) {
      progress_->EnterLayer(0);
      exec_.Enter("spin");
      NSA_RETURN_IF_ERROR(cuda::Spin(exec_, progress_->never()));
    }
    {
      const cuda::Range range("forward");
      NSA_RETURN_IF_ERROR(options_.model->EnqueueForward(exec_, micro));
    }
    progress_->EnterPhase(Phase::kBackward, micro);
    const cuda::Range range("backward");
    const bool last = micro + 1 == options_.micro_batches;
    NSA_RETURN_IF_ERROR(options_.model->Backward(exec_, options_.gradient_scale, options_.gradients,
                                                 last ? options_.after_part : Model::AfterPart()));
  }
  return options_.model->EnqueueReadout(exec_);
}

absl::Status GpuStep::EnqueueUpdate() {
  Arena* const gradients = options_.gradients;
  float* const loss = gradients->extras().data();
  const Model::Losses losses = options_.model->losses();
  progress_->EnterPhase(Phase::kReduce, 0);
  const cuda::Range range("update");
  const float scale = 1.0f / static_cast<float>(options_.micro_batches * options_.world_size);
  NSA_RETURN_IF_ERROR(cuda::MeanLoss(exec_, {.losses = losses.first,
                                             .count = options_.micro_batches,
                                             .stride = losses.stride,
                                             .scale = scale,
                                             .mean = loss}));
  if (options_.reduce) {
    NSA_RETURN_IF_ERROR(options_.reduce(exec_, gradients->with_extras()));
  }
  progress_->EnterPhase(Phase::kOptimizer, 0);
  cuda::StepOutput* const output = OutputOf(device_.data());
  NSA_RETURN_IF_ERROR(
      GlobalNorm(exec_, {.values = gradients->flat(), .norm = std::span<float>(&output->norm, 1)}));
  NSA_RETURN_IF_ERROR(cuda::DecideUpdate(
      exec_, {.input = InputOf(device_.data()), .loss = loss, .output = output}));
  static_assert(sizeof(AdamWStep) == 5 * sizeof(float));
  NSA_RETURN_IF_ERROR(options_.optimizer->Enqueue(exec_, ConstTensor(output, 5, DType::kF32),
                                                  *gradients, options_.parameters));
  NSA_RETURN_IF_ERROR(
      cuda::CopyBytes(exec_.stream, OutputOf(host_.data()), output, sizeof(cuda::StepOutput)));
  progress_->EnterPhase(Phase::kTelemetry, 0);
  return absl::OkStatus();
}

absl::Status GpuStep::Enqueue(int64_t step) {
  NSA_RETURN_IF_ERROR(EnqueueMicroBatches(step));
  return EnqueueUpdate();
}

absl::Status GpuStep::Wait() {
  if (!options_.wait) return progress_->Wait();
  return options_.wait([this] { return progress_->Look(); });
}

absl::Status GpuStep::Capture(int64_t step) {
  progress_->Drop();
  progress_->Begin();
  NSA_ASSIGN_OR_RETURN(graph_, cuda::Graph::Capture(exec_.stream, [&] { return Enqueue(step); }));
  progress_->Keep();
  graph_kind_ = options_.model->loaded_documents();
  ++captures_;
  return absl::OkStatus();
}

absl::StatusOr<GpuStep::Result> GpuStep::Run(int64_t step, double learning_rate) {
  const AdamWStep numbers = options_.optimizer->StepAt(step, learning_rate);
  *InputOf(host_.data()) = {.lr = numbers.lr,
                            .inverse_bias1 = numbers.inverse_bias1,
                            .inverse_bias2 = numbers.inverse_bias2,
                            .clip = static_cast<float>(options_.optimizer->clip())};
  NSA_RETURN_IF_ERROR(
      cuda::CopyBytes(exec_.stream, device_.data(), host_.data(), sizeof(cuda::StepInput)));
  const bool spins = step == options_.spin_at_step;
  const bool wants_graph = options_.graph && runs_ > 0 && !spins && graph_problem_.empty();
  if (wants_graph && (!graph_.ready() || graph_kind_ != options_.model->loaded_documents())) {
    if (const absl::Status captured = Capture(step); !captured.ok()) {
      graph_problem_ = std::string(captured.message());
      progress_->Drop();
      graph_ = {};
    }
  }
  launched_ = wants_graph && graph_.ready();
  progress_->Begin();
  if (launched_) {
    NSA_RETURN_IF_ERROR(graph_.Launch(exec_.stream));
  } else {
    if (!graph_problem_.empty()) ++graph_fallbacks_;
    NSA_RETURN_IF_ERROR(Enqueue(step));
  }
  NSA_RETURN_IF_ERROR(Wait());
  ++runs_;
  const cuda::StepOutput& output = *OutputOf(host_.data());
  return Result{.loss = output.loss,
                .norm = output.norm,
                .skipped = output.update.skip != 0,
                .forward_seconds = progress_->Seconds(Phase::kForward, launched_),
                .backward_seconds = progress_->Seconds(Phase::kBackward, launched_),
                .reduce_seconds = progress_->Seconds(Phase::kReduce, launched_),
                .optimizer_seconds = progress_->Seconds(Phase::kOptimizer, launched_)};
}

}  // namespace nsa
