#include "worker/bench/step.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/current_folder.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/passes.h"
#include "common/job/load.h"
#include "common/run/status_page.h"
#include "worker/bench/dense.h"
#include "worker/bench/start.h"
#include "worker/train/gpu/gpu.h"
#include "worker/train/gpu/gpu_step.h"
#include "worker/train/model/model_config.h"
#include "worker/train/model/model_products.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/state.h"

namespace nsa::bench {
namespace {

constexpr int kWarmUp = 5;

// Everything that a step needs, made as the trainer makes it.
struct Bench {
  explicit Bench(const v1::JobSpec& job) : spec(job), layout(job) {}
  Bench(const Bench&) = delete;  // arenas point at the layout

  absl::Status Make(const StepOptions& options);
  absl::Status Load();
  enum class Kind { kAsTrained, kInOrder, kTimed };
  absl::StatusOr<std::unique_ptr<train::GpuStep>> MakeStep(Kind kind);

  const v1::JobSpec spec;
  const train::ParameterLayout layout;
  std::unique_ptr<nsa::train::Gpu> gpu;
  std::unique_ptr<train::ModelState> state;
  StatusPage page;
  Start start;
  size_t next_token = 0;  // of start.tokens
};

absl::Status Bench::Make(const StepOptions& options) {
  NSA_ASSIGN_OR_RETURN(gpu, nsa::train::Gpu::Open());
  train::ModelConfig config = train::ModelConfigOf(spec);
  config.attention.dtype = DType::kBf16;
  NSA_RETURN_IF_ERROR(gpu->Plan(train::ProductsOf(config, PassesOf(spec).count)));
  NSA_RETURN_IF_ERROR(
      gpu->Plan(train::Optimizer::Products(spec.train(), layout, train::Slice{0, layout.size()})));
  NSA_ASSIGN_OR_RETURN(state, train::ModelState::Create(spec, &layout, Backend::kCuda, 1, 0,
                                                        /*group=*/nullptr, options.recompute));
  if (options.checkpoint.empty()) {
    start = RandomStart(spec, &layout);
  } else {
    NSA_ASSIGN_OR_RETURN(start, TrainedStart(spec, &layout, options.checkpoint, options.text));
  }
  NSA_RETURN_IF_ERROR(train::CopyArena(gpu->exec(), start.weights, &state->parameters));
  start.weights = {};  // gigabytes of a large model
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<train::GpuStep>> Bench::MakeStep(Kind kind) {
  return train::GpuStep::Create(
      {.gpu = gpu.get(),
       .state = state.get(),
       .page = &page,
       .micro_batches = PassesOf(spec).count,
       .gradient_scale = static_cast<float>(1.0 / static_cast<double>(TokensPerStep(spec))),
       .graph = spec.runtime().cuda_graphs(),
       .in_order = kind == Kind::kInOrder,
       .time_kernels = kind == Kind::kTimed});
}

// Loads the next tokens into every pass: in training, too, they are copied in every step.
absl::Status Bench::Load() {
  const Passes passes = PassesOf(spec);
  const auto rows =
      static_cast<size_t>(passes.sequences) * static_cast<size_t>(spec.train().seq_len());
  std::vector<int32_t> tokens(rows + 1);
  for (int32_t pass = 0; pass < passes.count; ++pass) {
    for (int32_t& token : tokens) {
      token = start.tokens[next_token];
      next_token = (next_token + 1) % start.tokens.size();
    }
    const std::span<const int32_t> all(tokens);
    NSA_RETURN_IF_ERROR(state->model->Load(gpu->exec(), pass,
                                           {.tokens = all.first(rows), .targets = all.last(rows)}));
  }
  return absl::OkStatus();
}

struct Timed {
  double seconds = 0;  // median
  train::GpuStep::Result last;
};

absl::StatusOr<Timed> Time(Bench* bench, train::GpuStep* step, int steps) {
  Timed timed;
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUp + steps; ++i) {
    NSA_RETURN_IF_ERROR(bench->Load());
    const auto begin = std::chrono::steady_clock::now();
    NSA_ASSIGN_OR_RETURN(timed.last, step->Run(i + 1, 1e-4));
    const auto end = std::chrono::steady_clock::now();
    if (i >= kWarmUp) seconds.push_back(std::chrono::duration<double>(end - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  timed.seconds = seconds[seconds.size() / 2];
  return timed;
}

void PrintKernels(const std::map<std::string, train::GpuProgress::KernelTime>& times) {
  std::vector<std::pair<std::string, train::GpuProgress::KernelTime>> sorted(times.begin(),
                                                                             times.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double sum = 0;
  for (const auto& [name, time] : sorted) sum += time.seconds;
  for (const auto& [name, time] : sorted) {
    absl::PrintF("%9.3f ms %5.1f %% %5d calls  %s\n", 1e3 * time.seconds, 100 * time.seconds / sum,
                 time.calls, name);
  }
}

absl::StatusOr<v1::JobSpec> LoadSpec(const std::string& path) {
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path here, CurrentFolder());
  NSA_ASSIGN_OR_RETURN(JobFile file, LoadJobFile(path, here));
  ApplyDefaults(&file.spec);
  file.spec.mutable_resources()->set_gpus(1);
  ResolveDevice(/*has_gpu=*/true, &file.spec);
  if (file.spec.runtime().device() == v1::DEVICE_CUDA) return file.spec;
  return absl::InvalidArgumentError("runtime.device: cpu (must be cuda); write device: cuda");
}

double TokensPerSecond(const v1::JobSpec& spec, const Timed& timed) {
  return static_cast<double>(TokensPerStep(spec)) / timed.seconds;
}

void PrintSpeed(const Bench& bench, const train::GpuStep& step, const Timed& timed,
                const Ceilings& ceilings) {
  const v1::JobSpec& spec = bench.spec;
  const double speed = TokensPerSecond(spec, timed), flops = FlopsPerToken(spec) * speed;
  const Passes passes = PassesOf(spec);
  absl::PrintF("%s: %d x %d sequences of %d tokens as %d x %d, %d parameters, recomputed: %s\n",
               spec.name(), spec.train().batch_size(), spec.train().accumulate_grad_batches(),
               spec.train().seq_len(), passes.sequences, passes.count, bench.layout.count(),
               RecomputeName(bench.state->recompute));
  absl::PrintF("%s\n", bench.start.origin);
  absl::PrintF(
      "%.0f tok/s, %.3f ms a step (forward %.3f, backward %.3f, optimizer %.3f), %.1f TFLOP/s = "
      "%.1f %% of the matrix ceiling\n",
      speed, 1e3 * timed.seconds, 1e3 * timed.last.forward_seconds,
      1e3 * timed.last.backward_seconds, 1e3 * timed.last.optimizer_seconds, flops / 1e12,
      100 * flops / ceilings.gemm_flops);
  absl::PrintF(
      "graph of %d nodes, captured %d times, %d steps without it; products not timed %d; %.0f MiB "
      "of the GPU in use (estimate %.0f)\n",
      step.graph_nodes(), step.captures(), step.graph_fallbacks(), bench.gpu->untimed_products(),
      static_cast<double>(bench.gpu->UsedBytes()) / (1 << 20),
      static_cast<double>(TotalBytes(MemoryEstimate(spec, bench.state->recompute))) / (1 << 20));
}

// The same steps with all kernels in order, and with each kernel timed.
absl::Status PrintKernelsOf(Bench* bench, const Timed& timed, int steps) {
  NSA_ASSIGN_OR_RETURN(auto step, bench->MakeStep(Bench::Kind::kInOrder));
  NSA_ASSIGN_OR_RETURN(const Timed in_order, Time(bench, step.get(), steps));
  absl::PrintF("%.3f ms a step with all kernels in order, %.3f times as long\n",
               1e3 * in_order.seconds, in_order.seconds / timed.seconds);
  step.reset();
  NSA_ASSIGN_OR_RETURN(step, bench->MakeStep(Bench::Kind::kTimed));
  NSA_RETURN_IF_ERROR(Time(bench, step.get(), 1).status());
  PrintKernels(step->KernelTimes());
  return absl::OkStatus();
}

absl::StatusOr<Timed> TimeJob(const v1::JobSpec& spec, const StepOptions& options,
                              const Ceilings& ceilings, bool kernels) {
  Bench bench(spec);
  NSA_RETURN_IF_ERROR(bench.Make(options));
  NSA_ASSIGN_OR_RETURN(auto step, bench.MakeStep(Bench::Kind::kAsTrained));
  NSA_ASSIGN_OR_RETURN(Timed timed, Time(&bench, step.get(), options.steps));
  PrintSpeed(bench, *step, timed, ceilings);
  step.reset();
  if (kernels) NSA_RETURN_IF_ERROR(PrintKernelsOf(&bench, timed, options.steps));
  return timed;
}

}  // namespace

absl::Status RunStep(const StepOptions& options, const Ceilings& ceilings) {
  NSA_ASSIGN_OR_RETURN(const v1::JobSpec spec, LoadSpec(options.job));
  NSA_ASSIGN_OR_RETURN(const Timed timed, TimeJob(spec, options, ceilings, options.kernels));
  if (!options.vs_dense) return absl::OkStatus();
  StepOptions random = options;
  random.checkpoint.clear();
  NSA_ASSIGN_OR_RETURN(const Timed dense,
                       TimeJob(Dense(spec, spec.train().seq_len()), random, ceilings, false));
  absl::PrintF("%.3f times the speed of dense attention\n", dense.seconds / timed.seconds);
  return absl::OkStatus();
}

}  // namespace nsa::bench
