// Measures what a token costs on this machine with the model of configs/jobs/demo.yaml: by a
// forward pass over the whole context, and with the caches of the decoder.
//
//   build/release/bench/worker_train_decode_decode_bench
//   OMP_NUM_THREADS=1 taskset -c 0 build/release/bench/worker_train_decode_decode_bench
#include <benchmark/benchmark.h>

#include <vector>

#include "common/job/load.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/model/model.h"

namespace nsa::train {
namespace {

v1::JobSpec Demo() {
  v1::JobSpec spec;
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_dim(128);
  model.set_n_layers(2);
  model.set_n_heads(4);
  model.set_n_kv_groups(2);
  model.set_d_k(32);
  model.set_d_v(32);
  v1::NsaSpec& nsa = *spec.mutable_nsa();
  nsa.set_l(16);
  nsa.set_d(8);
  nsa.set_l_sel(32);
  nsa.set_n_sel(4);
  nsa.set_w(64);
  ApplyDefaults(&spec);
  return spec;
}

struct Weights {
  explicit Weights(const v1::JobSpec& spec) : layout(spec), parameters(&layout) {
    SetThreads(0, 1);
    Initialize(1, &parameters);
  }
  ParameterLayout layout;
  Arena parameters;
};

std::vector<int32_t> Tokens(int64_t count) {
  std::vector<int32_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>((i * i + 7 * i) % 251 + 1);
  return tokens;
}

void WholeForward(benchmark::State& state, const v1::JobSpec& spec) {
  const Weights weights(spec);
  const auto context = static_cast<int32_t>(state.range(0));
  auto model = Model::Create(spec, {.batch = 1, .seq_len = context}, &weights.parameters);
  if (!model.ok()) return state.SkipWithError(model.status().ToString().c_str());
  const std::vector<int32_t> tokens = Tokens(context);
  std::vector<float> logits(256);
  for (auto _ : state) {
    if (!(*model)->NextLogits({}, tokens, context - 1, logits).ok()) state.SkipWithError("refused");
  }
}

// Steps around `context` tokens.
void Step(benchmark::State& state, const v1::JobSpec& spec) {
  constexpr int32_t kAround = 64;
  const Weights weights(spec);
  const auto context = static_cast<int32_t>(state.range(0));
  auto decoder = Decoder::Create(Exec{}, spec, &weights.parameters, {.context = context + kAround});
  if (!decoder.ok()) return state.SkipWithError(decoder.status().ToString().c_str());
  const std::vector<int32_t> tokens = Tokens(context - kAround);
  bool ok = (*decoder)->Prefill(tokens).ok();
  for (auto _ : state) {
    ok = ok && (*decoder)->Step(65).ok();
    if ((*decoder)->tokens() < (*decoder)->context()) continue;
    state.PauseTiming();
    (*decoder)->Reset();
    ok = ok && (*decoder)->Prefill(tokens).ok();
    state.ResumeTiming();
  }
  if (!ok) state.SkipWithError("refused");
  state.counters["MiB"] = static_cast<double>((*decoder)->bytes()) / (1 << 20);
}

void Prefill(benchmark::State& state, const v1::JobSpec& spec) {
  const Weights weights(spec);
  const auto context = static_cast<int32_t>(state.range(0));
  auto decoder = Decoder::Create(Exec{}, spec, &weights.parameters, {.context = context});
  if (!decoder.ok()) return state.SkipWithError(decoder.status().ToString().c_str());
  const std::vector<int32_t> tokens = Tokens(context);
  for (auto _ : state) {
    (*decoder)->Reset();
    if (!(*decoder)->Prefill(tokens).ok()) state.SkipWithError("refused");
  }
  state.SetItemsProcessed(state.iterations() * context);
}

#define NSA_CONTEXTS                  \
  Arg(256)                            \
      ->Arg(1024)                     \
      ->Arg(2048)                     \
      ->Unit(benchmark::kMillisecond) \
      ->UseRealTime()                 \
      ->MeasureProcessCPUTime()       \
      ->MinTime(1)
BENCHMARK_CAPTURE(WholeForward, demo, Demo())->NSA_CONTEXTS;
BENCHMARK_CAPTURE(Step, demo, Demo())->NSA_CONTEXTS;
BENCHMARK_CAPTURE(Prefill, demo, Demo())->NSA_CONTEXTS;
#undef NSA_CONTEXTS

}  // namespace
}  // namespace nsa::train

int main(int argc, char** argv) {
  nsa::train::PrepareLibraries(argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
