#include "worker/train/gpu/gpu_step.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/optimizer/global_norm.h"

namespace nsa::train {
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
  ModelState* const state = options.state;
  const int64_t size = state->gradients.layout().size();
  if (options.nccl != nullptr) {
    SumOptions sums = {.bf16 = options.bf16_gradients};
    const std::span<const int64_t> cuts = state->shares.cuts();
    if (state->sharded) sums.cuts.assign(cuts.begin(), cuts.end());
    sums.windows = state->window.has_value();
    sums.in_line = sums.windows && !options.sums_in_backward;
    NSA_ASSIGN_OR_RETURN(
        step->reducer_,
        GradientReducer::Create(
            options.nccl, sums.windows ? state->gradients.extras() : state->gradients.with_extras(),
            size, GradientReducer::kBucketElements, sums));
    NSA_ASSIGN_OR_RETURN(
        step->squares_,
        cuda::DeviceMemory::Allocate(static_cast<int64_t>(sizeof(double)) * state->shares.ranks(),
                                     "sums of squares"));
  }
  NSA_RETURN_IF_ERROR(options.gpu->TakeScratch(
      std::max({state->model->scratch_bytes(), state->optimizer.workspace_bytes(),
                cuda::GlobalNormWorkspaceBytes(size)})));
  NSA_ASSIGN_OR_RETURN(step->device_, cuda::DeviceMemory::Allocate(kBytes, "a step's numbers"));
  NSA_ASSIGN_OR_RETURN(step->host_, cuda::PinnedMemory::Allocate(kBytes, "a step's numbers"));
  if (options.weighted) {
    const int64_t bytes = static_cast<int64_t>(sizeof(float)) * options.micro_batches;
    NSA_ASSIGN_OR_RETURN(step->weights_, cuda::DeviceMemory::Allocate(bytes, "weights of losses"));
    NSA_ASSIGN_OR_RETURN(step->weights_on_host_,
                         cuda::PinnedMemory::Allocate(bytes, "weights of losses"));
  }
  NSA_ASSIGN_OR_RETURN(step->progress_, GpuProgress::Create(options.page, options.time_kernels,
                                                            options.micro_batches));
  step->exec_ = step->progress_->Watch(options.gpu->exec());
  // Kernels that run at the same time cannot be timed one by one.
  if (options.in_order || options.time_kernels) step->exec_.side = nullptr;
  GpuProgress* const progress = step->progress_.get();
  state->model->set_on_layer([progress](int32_t layer) { progress->EnterLayer(layer); });
  if (state->weights.has_value()) {
    state->model->set_before_part([made = step.get()](int32_t part, Model::Pass pass) {
      return made->GatherBefore(part, pass);
    });
  }
  return step;
}

absl::Status GpuStep::EnqueueMicroBatches(int64_t step) {
  Model* const model = options_.state->model.get();
  if (reducer_ != nullptr) reducer_->Reset();
  for (int32_t micro = 0; micro < options_.micro_batches; ++micro) {
    progress_->EnterPhase(Phase::kForward, micro);
    if (step == options_.spin_at_step) {
      progress_->EnterLayer(0);
      exec_.Enter("spin");
      NSA_RETURN_IF_ERROR(cuda::Spin(exec_, progress_->never()));
    }
    {
      const cuda::Range range("forward");
      NSA_RETURN_IF_ERROR(model->EnqueueForward(exec_, micro, /*loss_in_backward=*/true));
    }
    progress_->EnterPhase(Phase::kBackward, micro);
    const cuda::Range range("backward");
    NSA_RETURN_IF_ERROR(EnqueueBackward(micro));
  }
  return model->EnqueueReadout(exec_);
}

absl::Status GpuStep::EnqueueBackward(int32_t micro) {
  ModelState& state = *options_.state;
  if (state.window.has_value()) return BackwardToShares(micro);
  Model::AfterPart after_part;
  if (reducer_ != nullptr && SumsInBackward() && micro + 1 == options_.micro_batches) {
    after_part = [this](int64_t begin) { return reducer_->Ready(exec_.stream, begin); };
  }
  return state.model->Backward(exec_, options_.gradient_scale, &state.gradients, after_part,
                               /*overwrite=*/micro == 0);
}

// Backward into the window. In the first step the host waits for the sums of each part, so that
// none is waiting for another rank while this one plans a matrix product: see FinishSums().
absl::Status GpuStep::BackwardToShares(int32_t micro) {
  ModelState& state = *options_.state;
  size_t part = 0;
  NSA_RETURN_IF_ERROR(OpenWindow(part));
  const auto after_part = [&](int64_t) -> absl::Status {
    NSA_RETURN_IF_ERROR(SumWindow(/*add=*/micro > 0));
    if (!warm()) NSA_RETURN_IF_ERROR(WaitForWindows());
    return ++part < state.window->parts().size() ? OpenWindow(part) : absl::OkStatus();
  };
  return state.model->Backward(exec_, options_.gradient_scale, state.window->arena(), after_part,
                               /*overwrite=*/true);
}

// Not while capturing. Shows progress on the status page meanwhile, as at the end of a step.
absl::Status GpuStep::WaitForWindows() {
  NSA_RETURN_IF_ERROR(reducer_->AwaitWindow(exec_.stream, /*first=*/true));
  return Wait();
}

absl::Status GpuStep::OpenWindow(size_t part) {
  NSA_RETURN_IF_ERROR(reducer_->AwaitWindow(exec_.stream, /*first=*/part == 0));
  options_.state->window->MoveTo(part);
  return absl::OkStatus();
}

absl::Status GpuStep::SumWindow(bool add) {
  ModelState& state = *options_.state;
  Arena* const window = state.window->arena();
  return reducer_->SumWindow(exec_.stream, {.values = window->flat(),
                                            .first = window->slice().begin,
                                            .share = state.gradients.flat(),
                                            .add = add});
}

// Gathers what is due before the model reads `part`, and moves it there. In the first step the host
// waits for each gather, as for the sums of BackwardToShares().
absl::Status GpuStep::GatherBefore(int32_t part, Model::Pass pass) {
  WeightWindow& weights = *options_.state->weights;
  for (const int32_t due : GathersBefore(part, pass, weights.last(), /*ahead=*/true)) {
    NSA_RETURN_IF_ERROR(Gather(due));
    if (warm()) continue;
    NSA_RETURN_IF_ERROR(reducer_->AwaitGather(exec_.stream, weights.turn(due)));
    NSA_RETURN_IF_ERROR(Wait());
  }
  NSA_RETURN_IF_ERROR(reducer_->AwaitGather(exec_.stream, weights.turn(part)));
  weights.MoveTo(part);
  return absl::OkStatus();
}

// Every rank sends the bf16 weights that it has of the part.
absl::Status GpuStep::Gather(int32_t part) {
  const ModelState& state = *options_.state;
  WeightWindow& weights = *options_.state->weights;
  const Slice& elements = weights.part(part);
  weights.MoveTo(part);
  std::vector<NcclPiece> pieces;
  for (int32_t rank = 0; rank < state.shares.ranks(); ++rank) {
    const Slice own = elements.Common(state.shares.of(rank));
    if (own.empty()) continue;
    pieces.push_back({.from = rank == state.rank ? state.parameters.half(own).data : nullptr,
                      .to = weights.arena()->half(own).data,
                      .bytes = 2 * own.size(),
                      .root = rank});
  }
  const Tensor tail = weights.tail(part);
  if (tail.wanted()) NSA_RETURN_IF_ERROR(cuda::ZeroBytes(exec_.stream, tail.data, 2 * tail.size));
  return reducer_->Gather(exec_.stream, weights.turn(part), pieces);
}

// Completes the sums; what is enqueued later sees the sums over all ranks. Where backward has not
// enqueued them, all are enqueued here. The first step enqueues all of its sums here, in the same
// buckets as other steps. Reason: it may meet a matrix product whose algorithm was not planned. The
// ranks plan that one at a time, and freeing the memory for it waits for the whole GPU, on which no
// sum may then be waiting for another rank.
absl::Status GpuStep::FinishSums() {
  if (reducer_ == nullptr) return absl::OkStatus();
  if (!options_.state->window.has_value() && !SumsInBackward()) {
    for (const int64_t begin : options_.state->model->PartBegins()) {
      NSA_RETURN_IF_ERROR(reducer_->Ready(exec_.stream, begin));
    }
  }
  return reducer_->Finish(exec_.stream);
}

// The norm of all gradients. With several ranks it is made of the sums of squares of their shares,
// whether a rank has one of them or all: the same bits.
absl::Status GpuStep::EnqueueNorm(float* norm) {
  ModelState& state = *options_.state;
  const std::span<float> result(norm, 1);
  if (reducer_ == nullptr) {
    return GlobalNorm(exec_, {.values = state.gradients.flat(), .norm = result});
  }
  const int32_t ranks = state.shares.ranks();
  auto* const sums = static_cast<double*>(squares_.data());
  if (state.sharded) {
    NSA_RETURN_IF_ERROR(cuda::ZeroBytes(exec_.stream, sums, squares_.bytes()));
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (state.sharded && rank != state.rank) continue;
    NSA_RETURN_IF_ERROR(SquareSum(
        exec_, {.values = state.gradients.of(state.shares.of(rank)), .sum = sums + rank}));
  }
  if (state.sharded) NSA_RETURN_IF_ERROR(reducer_->ShareSquareSums(exec_.stream, sums));
  return NormOfSums(exec_, {.sums = sums, .count = ranks, .norm = result});
}

absl::Status GpuStep::EnqueueUpdate() {
  ModelState& state = *options_.state;
  float* const loss = state.gradients.extras().data();
  const Model::Losses losses = state.model->losses();
  progress_->EnterPhase(Phase::kReduce, 0);
  const cuda::Range range("update");
  const float scale = 1.0f / static_cast<float>(options_.micro_batches * options_.world_size);
  NSA_RETURN_IF_ERROR(cuda::MeanLoss(exec_, {.losses = losses.first,
                                             .count = options_.micro_batches,
                                             .stride = losses.stride,
                                             .scale = scale,
                                             .weights = static_cast<const float*>(weights_.data()),
                                             .mean = loss}));
  NSA_RETURN_IF_ERROR(FinishSums());
  progress_->EnterPhase(Phase::kOptimizer, 0);
  cuda::StepOutput* const output = OutputOf(device_.data());
  NSA_RETURN_IF_ERROR(EnqueueNorm(&output->norm));
  NSA_RETURN_IF_ERROR(cuda::DecideUpdate(
      exec_, {.input = InputOf(device_.data()), .loss = loss, .output = output}));
  static_assert(sizeof(AdamWStep) == 5 * sizeof(float));
  NSA_RETURN_IF_ERROR(state.optimizer.Enqueue(exec_, ConstTensor(output, 5, DType::kF32),
                                              state.gradients, &state.parameters));
  if (state.sharded && !state.weights.has_value()) {
    auto* const weights = static_cast<std::byte*>(state.parameters.half().data);
    NSA_RETURN_IF_ERROR(reducer_->GatherWeights(exec_.stream, weights));
  }
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
  if (reducer_ == nullptr) return progress_->Wait();
  return options_.nccl->WaitFor("step", [this] {
    reducer_->Show(options_.page);
    return progress_->Poll();
  });
}

absl::Status GpuStep::Capture(int64_t step) {
  progress_->Drop();
  progress_->Begin();
  NSA_ASSIGN_OR_RETURN(graph_, cuda::Graph::Capture(exec_.stream, [&] { return Enqueue(step); }));
  progress_->Keep();
  graph_kind_ = options_.state->model->loaded_documents();
  ++captures_;
  return absl::OkStatus();
}

absl::Status GpuStep::SendInput(int64_t step, double learning_rate, const LossWeights& weights) {
  const Optimizer& optimizer = options_.state->optimizer;
  const AdamWStep numbers = optimizer.StepAt(step, learning_rate);
  *InputOf(host_.data()) = {.lr = numbers.lr,
                            .inverse_bias1 = numbers.inverse_bias1,
                            .inverse_bias2 = numbers.inverse_bias2,
                            .clip = static_cast<float>(optimizer.clip()),
                            .weight = weights.gradient};
  NSA_RETURN_IF_ERROR(
      cuda::CopyBytes(exec_.stream, device_.data(), host_.data(), sizeof(cuda::StepInput)));
  if (!options_.weighted) return absl::OkStatus();
  std::ranges::copy(weights.passes, static_cast<float*>(weights_on_host_.data()));
  return cuda::CopyBytes(exec_.stream, weights_.data(), weights_on_host_.data(), weights_.bytes());
}

absl::StatusOr<GpuStep::Result> GpuStep::Run(int64_t step, double learning_rate,
                                             const LossWeights& weights) {
  NSA_RETURN_IF_ERROR(SendInput(step, learning_rate, weights));
  const bool spins = step == options_.spin_at_step;
  const bool wants_graph = options_.graph && runs_ > 0 && !spins && graph_problem_.empty();
  if (wants_graph &&
      (!graph_.ready() || graph_kind_ != options_.state->model->loaded_documents())) {
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

}  // namespace nsa::train
