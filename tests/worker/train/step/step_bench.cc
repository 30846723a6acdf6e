// Measures a step on this machine: tokens per second for a job's shape, and the time by kernel
// family.
//
//   build/cpu/bench/worker_train_step_step_bench    the shape of configs/jobs/train_showcase.yaml
//   OMP_NUM_THREADS=1 taskset -c 0 build/cpu/bench/worker_train_step_step_bench    on one core
//
// The time of a kernel is the wall time from its start to the start of the next one, as the status
// page shows them.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <chrono>
#include <map>
#include <string>

#include "common/job/load.h"
#include "kernels/nn/copy.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/model/model.h"
#include "worker/train/model/optimizer.h"

namespace nsa::train {
namespace {

v1::JobSpec Showcase() {
  v1::JobSpec spec;
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_dim(128);
  model.set_n_layers(1);
  model.set_n_heads(8);
  model.set_n_kv_groups(2);
  model.set_d_k(16);
  model.set_d_v(16);
  v1::NsaSpec& nsa = *spec.mutable_nsa();
  nsa.set_l(16);
  nsa.set_d(8);
  nsa.set_l_sel(32);
  nsa.set_n_sel(8);
  nsa.set_w(64);
  spec.mutable_train()->set_seq_len(128);
  spec.mutable_train()->set_batch_size(8);
  spec.mutable_train()->set_lr(3e-4);
  ApplyDefaults(&spec);
  return spec;
}

// Four layers of width 192: a model that a CPU can train in minutes.
v1::JobSpec Demo() {
  v1::JobSpec spec = Showcase();
  spec.mutable_model()->set_dim(192);
  spec.mutable_model()->set_n_layers(4);
  spec.mutable_model()->set_n_heads(6);
  spec.mutable_model()->set_d_k(32);
  spec.mutable_model()->set_d_v(32);
  spec.mutable_train()->set_seq_len(256);
  spec.mutable_train()->set_batch_size(4);
  return spec;
}

// Adds up the time from each kernel's start to the start of the next one.
class KernelTimes {
 public:
  void Enter(const char* name) {
    const auto now = std::chrono::steady_clock::now();
    if (!current_.empty())
      seconds_[current_] += std::chrono::duration<double>(now - since_).count();
    current_ = name;
    since_ = now;
  }
  void Clear() { seconds_.clear(), current_.clear(); }
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  std::map<std::string, double> seconds_;
  std::string current_;
  std::chrono::steady_clock::time_point since_;
};

void Step(benchmark::State& state, const v1::JobSpec& spec) {
  SetThreads(0, 1);
  const ParameterLayout layout(spec);
  Arena parameters(&layout), gradients(&layout);
  Initialize(1, &parameters);
  Optimizer optimizer(spec.train(), &layout);
  const int64_t rows = int64_t{spec.train().batch_size()} * spec.train().seq_len();
  auto model = Model::Create(spec,
                             {.batch = spec.train().batch_size(),
                              .seq_len = spec.train().seq_len(),
                              .training = true,
                              .statistics = true},
                             &parameters);
  if (!model.ok()) return state.SkipWithError(model.status().ToString().c_str());
  std::vector<int32_t> tokens(rows + 1);
  for (int64_t i = 0; i <= rows; ++i) tokens[i] = static_cast<int32_t>((i * i + 7 * i) % 256);
  const std::span<const int32_t> all(tokens);
  const TokenBatch batch = {.tokens = all.first(rows), .targets = all.last(rows)};

  KernelTimes times;
  Exec exec;
  exec.on_kernel_context = &times;
  exec.on_kernel = [](void* context, const char* name) {
    static_cast<KernelTimes*>(context)->Enter(name);
  };
  int64_t step = 0;
  const auto run = [&] {
    ++step;
    bool ok = Zero(exec, gradients.flat()).ok();
    ok = ok && (*model)->Forward(exec, batch).ok();
    ok = ok && (*model)->Backward(exec, static_cast<float>(1.0 / rows), &gradients).ok();
    const auto norm = optimizer.GlobalNorm(exec, gradients);
    ok = ok && norm.ok() && optimizer.Update(exec, step, 3e-4, *norm, gradients, &parameters).ok();
    times.Enter("outside kernels");
    if (!ok) state.SkipWithError("a kernel refused");
  };
  run();
  times.Clear();
  for (auto _ : state) run();
  state.SetItemsProcessed(state.iterations() * rows);
  for (const auto& [name, seconds] : times.seconds()) {
    state.counters[name + "_us"] = 1e6 * seconds / static_cast<double>(state.iterations());
  }
}

void TrainShowcase(benchmark::State& state) { Step(state, Showcase()); }
void DemoShape(benchmark::State& state) { Step(state, Demo()); }

BENCHMARK(TrainShowcase)->Unit(benchmark::kMillisecond)->UseRealTime()->MinTime(2);
BENCHMARK(DemoShape)->Unit(benchmark::kMillisecond)->UseRealTime()->MinTime(2);

}  // namespace
}  // namespace nsa::train

int main(int argc, char** argv) {
  nsa::train::PrepareLibraries(argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
