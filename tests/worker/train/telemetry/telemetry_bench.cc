// Measures the time that reporting a step takes on the training thread: the journal's write(2), and
// passing the record to the thread that writes the files. The limit is 0.5 % of a step
// (step_bench).
#include <filesystem>
#include <string>

#include "benchmark/benchmark.h"
#include "common/base/log.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/telemetry/reporter.h"

namespace nsa::train {
namespace {

v1::StepRecord StepWithLayers(int64_t layers) {
  v1::StepRecord step;
  step.set_loss(2.5);
  step.set_tokens(4096);
  for (int64_t i = 0; i < layers; ++i) {
    v1::LayerStats* layer = step.add_layers();
    layer->set_layer(static_cast<int32_t>(i));
    layer->mutable_gate()->set_entropy_mean(1.0);
    layer->mutable_selection()->set_keys_mean(750);
    for (int branch = 0; branch < 3; ++branch) {
      layer->mutable_gate()->add_branch_share(1.0 / 3);
      layer->add_keys_read(1 << 20);
      layer->add_keys_expected(1 << 20);
    }
  }
  return step;
}

void BM_ReportStep(benchmark::State& state) {
  spdlog::set_level(spdlog::level::warn);
  const TempDir dir;
  ReporterOptions options;
  options.out_dir = *Folder::Make(dir / "out");
  options.spec.mutable_train()->set_log_every(20);
  options.journal = dir / "journal";
  auto reporter = Reporter::Open(options);
  v1::StepRecord step = StepWithLayers(state.range(0));
  int64_t number = 0;
  for (auto _ : state) {
    step.set_step(++number);
    (*reporter)->Step(step);
  }
  state.counters["dropped"] = static_cast<double>((*reporter)->dropped());
}
BENCHMARK(BM_ReportStep)->ArgName("layers")->Arg(1)->Arg(12)->Iterations(20000);

}  // namespace
}  // namespace nsa::train

BENCHMARK_MAIN();
