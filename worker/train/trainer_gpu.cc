// What of the loop differs on a GPU: a step is enqueued as a whole and waited for once.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/estimate.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/train/machine.h"
#include "worker/train/schedule.h"
#include "worker/train/trainer.h"

namespace nsa {
namespace {

// For tests of what a hanging kernel leads to: the step in which one hangs, the first time the job
// is started. 0: none.
int64_t SpinAtStep(int64_t generation) {
  const char* const text = std::getenv("NSA_TEST_SPIN_AT_STEP");
  int64_t step = 0;
  return generation == 1 && text != nullptr && absl::SimpleAtoi(text, &step) ? step : 0;
}

}  // namespace

// The ranks' GPUs meet. A service's hang policy, which has stacks dumped first, comes before the
// communicator's own timeout.
absl::Status Trainer::ConnectGpus() {
  constexpr absl::Duration kAfterPolicy = absl::Seconds(30);
  page_.SetPhase(Phase::kWaitingForPeers);
  const char* const library = std::getenv("NSA_NCCL_LIBRARY");
  NSA_ASSIGN_OR_RETURN(
      nccl_, NcclComm::Connect(
                 {.host = comm_.get(),
                  .timeout = absl::Seconds(spec_.restart().hang_timeout_seconds()) + kAfterPolicy,
                  .library = library == nullptr ? "" : library,
                  .status_page = &page_}));
  page_.SetPhase(Phase::kStarting);
  return absl::OkStatus();
}

// Gradients go over the ranks part by part, while backward goes on; a wait watches the other ranks.
void Trainer::JoinGpus(GpuStepOptions* options) {
  const auto ready = [this](int32_t part) {
    return reducer_->Ready(gpu_->stream(), model_->PlaceOf(part).offset);
  };
  options->begin = [this] { reducer_->Reset(); };
  // A product that was not planned is planned in the first step: one rank at a time, and giving
  // memory back, which waits for the whole GPU. Nothing on it may wait for another rank then, so
  // the first step's sums, cut like all others, come at its end.
  options->after_part = [this, ready](int32_t part) {
    return gpu_step_->warm() ? ready(part) : absl::OkStatus();
  };
  options->reduce = [this, ready](const Exec& exec, std::span<float>) {
    for (int32_t part = spec_.model().n_layers(); !gpu_step_->warm() && part >= -1; --part) {
      NSA_RETURN_IF_ERROR(ready(part));
    }
    return reducer_->Finish(exec.stream);
  };
  options->wait = [this](const std::function<absl::StatusOr<bool>()>& look) {
    return nccl_->WaitFor("step", [&] {
      reducer_->Show(&page_);
      return look();
    });
  };
}

absl::Status Trainer::MakeGpuStep() {
  GpuStepOptions options = {
      .gpu = gpu_.get(),
      .model = model_.get(),
      .optimizer = &*optimizer_,
      .parameters = &parameters_,
      .gradients = &gradients_,
      .page = &page_,
      .micro_batches = train_.accumulate_grad_batches(),
      .world_size = launch_.world_size(),
      .gradient_scale = static_cast<float>(1.0 / static_cast<double>(TokensPerStep(spec_))),
      .graph = spec_.runtime().cuda_graphs(),
      .time_kernels = options_.time_kernels,
      .spin_at_step = SpinAtStep(launch_.generation())};
  if (nccl_ != nullptr) {
    NSA_ASSIGN_OR_RETURN(
        reducer_, GradientReducer::Create(nccl_.get(), gradients_.with_extras(), layout_.size()));
    JoinGpus(&options);
  }
  NSA_ASSIGN_OR_RETURN(gpu_step_, GpuStep::Create(options));
  return absl::OkStatus();
}

absl::StatusOr<Trainer::StepResult> Trainer::GpuStepOf(int64_t step) {
  StepResult result;
  v1::StepRecord& record = result.record;
  v1::StepTimes& times = *record.mutable_times();
  record.set_step(step);
  record.set_learning_rate(LearningRate(train_, step));
  double data = 0, communication = 0;
  for (int32_t micro = 0; micro < train_.accumulate_grad_batches(); ++micro) {
    page_.SetPhase(Phase::kData);
    page_.SetMicroStep(micro);
    const absl::Duration begin = options_.clock->Monotonic();
    NSA_ASSIGN_OR_RETURN(const Batch batch, data_->Next());
    data += absl::ToDoubleSeconds(options_.clock->Monotonic() - begin);
    record.set_data_source(batch.source);
    record.set_data_epoch(batch.epoch);
    if (data_->fell_back()) ++synthetic_batches_;
    NSA_RETURN_IF_ERROR(
        model_->Load(gpu_step_->exec(), micro, {batch.tokens, batch.targets, batch.doc_start}));
  }

  const bool fell_back = gpu_step_->graph_fallbacks() > 0;
  NSA_ASSIGN_OR_RETURN(const GpuStep::Result done, gpu_step_->Run(step, record.learning_rate()));
  if (!fell_back && gpu_step_->graph_fallbacks() > 0) {
    spdlog::warn("cuda_graph: steps run kernel by kernel: {}", gpu_step_->graph_problem());
  }
  for (int32_t micro = 0; micro < train_.accumulate_grad_batches(); ++micro) {
    model_->Collect(micro);
  }
  record.set_loss(done.loss);
  record.set_grad_norm(done.norm);
  page_.SetPhase(Phase::kReduce);
  const RankReport mine = {.loss = done.loss,
                           .finite = !done.skipped,
                           .stop_after = stop_.stop_after(),
                           .too_slow = too_slow_.has_value(),
                           .exhausted = data_->exhausted()};
  const absl::Duration begin = options_.clock->Monotonic();
  NSA_ASSIGN_OR_RETURN(const std::vector<RankReport> reports, Exchange(comm_.get(), mine));
  communication += absl::ToDoubleSeconds(options_.clock->Monotonic() - begin);
  result.agreement = Conclude(reports, step);
  record.set_loss(result.agreement.loss);
  record.set_skipped_nonfinite(!result.agreement.finite);
  times.set_data_seconds(data);
  times.set_forward_seconds(done.forward_seconds);
  times.set_backward_seconds(done.backward_seconds);
  times.set_communication_seconds(communication + done.reduce_seconds);
  times.set_optimizer_seconds(done.optimizer_seconds);
  return result;
}

absl::StatusOr<double> Trainer::GpuEvalLoss(const Batch& batch) {
  const Exec& exec = gpu_step_->exec();
  gpu_step_->BeginOther(Phase::kEval);
  NSA_RETURN_IF_ERROR(model_->Load(exec, 0, {batch.tokens, batch.targets, batch.doc_start}));
  NSA_RETURN_IF_ERROR(model_->EnqueueForward(exec, 0));
  NSA_RETURN_IF_ERROR(model_->EnqueueReadout(exec));
  NSA_RETURN_IF_ERROR(gpu_step_->Wait());
  return model_->Collect(0);
}

// Copies to pinned memory run at the bus's speed; others at a tenth of it.
std::shared_ptr<float> Trainer::PinnedFloats(int64_t floats) {
  auto memory = cuda::PinnedMemory::Allocate(4 * floats, "checkpoint snapshots");
  if (!memory.ok()) {
    ++unpinned_;
    spdlog::warn("checkpoint_pinned_memory: {}", std::string(memory.status().message()));
    return nullptr;
  }
  const auto held = std::make_shared<cuda::PinnedMemory>(*std::move(memory));
  return {held, static_cast<float*>(held->data())};
}

absl::Status Trainer::CopyToHost(std::span<float> to, std::span<const float> from) {
  NSA_RETURN_IF_ERROR(cuda::CopyBytes(gpu_->stream(), to.data(), from.data(),
                                      static_cast<int64_t>(from.size_bytes())));
  return cuda::Synchronize(gpu_->stream());
}

void Trainer::PrintKernelTimes() const {
  const std::map<std::string, GpuProgress::KernelTime> times = gpu_step_->KernelTimes();
  std::vector<std::pair<std::string, GpuProgress::KernelTime>> sorted(times.begin(), times.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double sum = 0;
  for (const auto& [name, time] : sorted) sum += time.seconds;
  absl::PrintF("kernel times of step %d, %.3f ms\n", step(), 1e3 * sum);
  for (const auto& [name, time] : sorted) {
    absl::PrintF("%9.3f ms %5.1f %% %5d calls  %s\n", 1e3 * time.seconds, 100 * time.seconds / sum,
                 time.calls, name);
  }
}

// On a GPU nothing is taken after the first steps, so it is asked no more.
void Trainer::ReportMemory(v1::StepRecord* record) {
  if (!on_gpu()) {
    record->set_memory_allocated_bytes(ResidentBytes());
    record->set_memory_reserved_bytes(PeakResidentBytes());
    return;
  }
  constexpr int64_t kWarmUp = 3;
  if (gpu_bytes_ == 0 || record->step() <= state_.step() + kWarmUp) gpu_bytes_ = gpu_->UsedBytes();
  record->set_memory_allocated_bytes(
      parameters_.bytes() + gradients_.bytes() + optimizer_->first_moment().bytes() +
      optimizer_->second_moment().bytes() + model_->activation_bytes());
  record->set_memory_reserved_bytes(gpu_bytes_);
}

}  // namespace nsa
