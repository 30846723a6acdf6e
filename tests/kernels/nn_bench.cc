// Benchmarks of kernels/nn at the sizes of a step of configs/jobs/train_showcase.yaml (1,024 rows
// of 128 columns) and of one m7c micro-batch's row block (2,048 rows of 768): time, and the rate
// that limits each kernel: GFLOP/s for products, GB/s of memory traffic for the rest.
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/nn/activation.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/matmul.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/global_norm.h"
#include "kernels/optimizer/parameters_hash.h"

namespace nsa {
namespace {

std::span<const float> View(const std::vector<float>& values) { return values; }

void Gigabytes(benchmark::State& state, double bytes_a_call) {
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * bytes_a_call * state.iterations(), benchmark::Counter::kIsRate);
}

void Refuse(benchmark::State& state, const absl::Status& status) {
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

void BenchMatmul(benchmark::State& state) {
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const std::vector<float> x(rows * in, 0.5f), w(out * in, 0.25f);
  std::vector<float> y(rows * out);
  for (auto _ : state) {
    Refuse(state, Matmul({}, {.m = rows,
                              .n = out,
                              .k = in,
                              .transpose_b = true,
                              .a = View(x),
                              .b = View(w),
                              .c = std::span<float>(y)}));
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(rows * in * out * state.iterations()),
                         benchmark::Counter::kIsRate);
}

void BenchRmsNorm(benchmark::State& state) {
  const int64_t rows = state.range(0), dim = state.range(1);
  const std::vector<float> x(rows * dim, 0.5f), weight(dim, 1.0f), dy(rows * dim, 0.1f);
  std::vector<float> y(rows * dim), rstd(rows), dx(rows * dim), dweight(dim);
  for (auto _ : state) {
    Refuse(state, RmsNorm({}, {rows, dim, View(x), View(weight), std::span<float>(y),
                               std::span<float>(rstd)}));
    Refuse(state, RmsNormBackward({}, {rows, dim, View(dy), View(x), View(weight), View(rstd),
                                       std::span<float>(dx), std::span<float>(dweight)}));
  }
  Gigabytes(state, 4.0 * static_cast<double>(8 * rows * dim));
}

void BenchSilu(benchmark::State& state) {
  const int64_t size = state.range(0);
  const std::vector<float> x(size, 0.5f);
  std::vector<float> y(size);
  for (auto _ : state) Refuse(state, Activate({}, {.x = View(x), .y = std::span<float>(y)}));
  Gigabytes(state, 8.0 * static_cast<double>(size));
}

void BenchEmbedding(benchmark::State& state) {
  const int64_t rows = state.range(0), dim = state.range(1), vocab = 256;
  std::vector<int32_t> tokens(rows);
  for (int64_t r = 0; r < rows; ++r) tokens[r] = static_cast<int32_t>(r * 37 % vocab);
  const std::vector<float> dy(rows * dim, 0.5f);
  std::vector<float> table(vocab * dim);
  for (auto _ : state) {
    Refuse(state, EmbeddingBackward({}, {rows, vocab, dim, std::span<const int32_t>(tokens),
                                         View(dy), std::span<float>(table)}));
  }
  Gigabytes(state, 12.0 * static_cast<double>(rows * dim));
}

void BenchCrossEntropy(benchmark::State& state) {
  const int64_t rows = state.range(0), vocab = state.range(1);
  const std::vector<float> logits(rows * vocab, 0.5f);
  const std::vector<int32_t> targets(rows, 3);
  std::vector<float> row_loss(rows), mean(1), dlogits(rows * vocab);
  for (auto _ : state) {
    Refuse(state, CrossEntropy({}, {rows, vocab, View(logits), std::span<const int32_t>(targets),
                                    std::span<float>(row_loss), std::span<float>(mean), 1.0f,
                                    std::span<float>(dlogits)}));
  }
  Gigabytes(state, 8.0 * static_cast<double>(rows * vocab));
}

void BenchAdamW(benchmark::State& state) {
  const int64_t size = state.range(0);
  const std::vector<float> g(size, 0.5f);
  std::vector<float> p(size), m(size), v(size), norm(1);
  const std::vector<AdamWSegment> segments = {{size, true}};
  for (auto _ : state) {
    Refuse(state, GlobalNorm({}, {.values = View(g), .norm = std::span<float>(norm)}));
    Refuse(state, AdamW({}, {.parameters = std::span<float>(p),
                             .gradients = View(g),
                             .m = std::span<float>(m),
                             .v = std::span<float>(v),
                             .segments = segments,
                             .lr = 1e-3f}));
  }
  Gigabytes(state, 32.0 * static_cast<double>(size));
}

void BenchParametersHash(benchmark::State& state) {
  const std::vector<float> values(state.range(0), 0.5f);
  uint64_t hash = 0;
  for (auto _ : state) Refuse(state, ParametersHash({}, {.values = View(values), .hash = &hash}));
  Gigabytes(state, 4.0 * static_cast<double>(values.size()));
}

BENCHMARK(BenchMatmul)->Args({1024, 128, 512})->Args({1024, 512, 128})->Args({2048, 768, 3072});
BENCHMARK(BenchRmsNorm)->Args({1024, 128})->Args({2048, 768});
BENCHMARK(BenchSilu)->Arg(1024 * 512)->Arg(2048 * 3072);
BENCHMARK(BenchEmbedding)->Args({1024, 128})->Args({2048, 768});
BENCHMARK(BenchCrossEntropy)->Args({1024, 256})->Args({64, 50257});
BENCHMARK(BenchAdamW)->Arg(254499)->Arg(10'000'000);
BENCHMARK(BenchParametersHash)->Arg(254499)->Arg(10'000'000);

}  // namespace
}  // namespace nsa

BENCHMARK_MAIN();
