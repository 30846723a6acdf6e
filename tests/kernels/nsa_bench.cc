// Speed of each family of kernels/nsa and of RoPE, as time per token. Figures are in
// kernels/README.md.
//   build/cpu/bench/kernels_nsa_bench --benchmark_filter=toy
#include <benchmark/benchmark.h>

#include "kernels/nn/rope.h"
#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/branch/window_attention.h"
#include "kernels/nsa/select/select_blocks.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

// The shapes of train_showcase and of the default model with one sequence.
constexpr NsaShape kToy{8, 128, 8, 2, 16, 16, 16, 8, 32, 8, 64};
constexpr NsaShape kM7c{1, 2048, 12, 2, 64, 64, 32, 16, 64, 16, 512};

void ReportTokens(benchmark::State& state, const NsaShape& s) {
  state.counters["per_token"] = benchmark::Counter(
      static_cast<double>(s.batch) * s.seq_len,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void Run(benchmark::State& state, const NsaShape& s, const auto& kernel) {
  for (auto _ : state) {
    const absl::Status status = kernel();
    if (!status.ok()) state.SkipWithError(status.ToString().c_str());
  }
  ReportTokens(state, s);
}

// A layer that has run once, and memory for every kernel's outputs.
struct Bench {
  explicit Bench(const NsaShape& shape, Phi phi = Phi::kAvg)
      : s(shape),
        layer(RandomLayer({.shape = shape, .phi = phi}, 1)),
        forward(Forward(layer)),
        d_o(Random(s.o_size(), 2)),
        backward(Backward(layer, forward, d_o)),
        o(s.o_size()),
        lse(int64_t{1} * s.batch * s.seq_len * s.n_heads),
        dq(s.q_size()),
        dk(s.k_size()),
        dv(s.v_size()),
        blocks(s.blocks_size()) {}

  template <class Args>
  Args CommonArgs(Branch branch) {
    Args args;
    args.shape = s;
    args.q = forward.saved.q;
    args.k = branch == kCmp ? forward.saved.k_cmp : forward.saved.k[branch];
    args.v = branch == kCmp ? ConstTensor(forward.saved.v_cmp) : Span(layer.v[branch]);
    return args;
  }
  template <class Args>
  Args ForwardArgs(Branch branch) {
    Args args = CommonArgs<Args>(branch);
    args.o = Span(o);
    args.lse = Span(lse);
    return args;
  }
  template <class Args>
  Args BackwardArgs(Branch branch) {
    Args args = CommonArgs<Args>(branch);
    args.o = forward.saved.o[branch];
    args.lse = forward.saved.lse[branch];
    args.d_o = Span(d_o);
    args.dq = Span(dq);
    args.dk = Tensor{dk.data(), args.k.size, DType::kF32};
    args.dv = Tensor{dv.data(), args.v.size, DType::kF32};
    return args;
  }

  NsaShape s;
  Layer layer;
  ForwardOut forward;
  std::vector<float> d_o;
  BackwardOut backward;
  std::vector<float> o, lse, dq, dk, dv;
  std::vector<int32_t> blocks;
};

void BM_Rope(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  Run(state, s, [&] {
    return Rope({}, {.batch = s.batch,
                     .seq_len = s.seq_len,
                     .heads = s.n_heads,
                     .head_dim = s.d_k,
                     .x = Span(bench.layer.q),
                     .y = Span(bench.dq)});
  });
}

void BM_CompressKeys(benchmark::State& state, const NsaShape& s, Phi phi) {
  Bench bench(s, phi);
  Run(state, s, [&] {
    return Compress({}, {.shape = s,
                         .width = s.d_k,
                         .phi = phi,
                         .x = bench.forward.saved.k[kCmp],
                         .params = bench.layer.params().phi_k,
                         .hidden = bench.forward.saved.phi_k_hidden,
                         .y = bench.forward.saved.k_cmp});
  });
}

void BM_CompressKeysBackward(benchmark::State& state, const NsaShape& s, Phi phi) {
  Bench bench(s, phi);
  std::vector<float> d_hidden(bench.forward.saved.phi_k_hidden.size);
  Run(state, s, [&] {
    return CompressBackward({}, {.shape = s,
                                 .width = s.d_k,
                                 .phi = phi,
                                 .x = bench.forward.saved.k[kCmp],
                                 .params = bench.layer.params().phi_k,
                                 .hidden = bench.forward.saved.phi_k_hidden,
                                 .dy = bench.forward.saved.k_cmp,
                                 .d_hidden = Span(d_hidden),
                                 .dx = Span(bench.dk),
                                 .grads = GradsOf(bench.backward.phi_k)});
  });
}

void BM_CompressedAttention(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  const auto args = bench.ForwardArgs<BranchArgs>(kCmp);
  Run(state, s, [&] { return CompressedAttention({}, args); });
}
void BM_CompressedAttentionBackward(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  const auto args = bench.BackwardArgs<BranchBackwardArgs>(kCmp);
  Run(state, s, [&] { return CompressedAttentionBackward({}, args); });
}

void BM_SelectBlocks(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  const SelectBlocksArgs args{.shape = s,
                              .q = bench.forward.saved.q,
                              .k = bench.forward.saved.k_cmp,
                              .lse = bench.forward.saved.lse[kCmp],
                              .blocks = Span(bench.blocks)};
  Run(state, s, [&] { return SelectBlocks({}, args); });
}

void BM_SelectedAttention(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  auto args = bench.ForwardArgs<BranchArgs>(kSel);
  args.blocks = bench.forward.saved.blocks;
  Run(state, s, [&] { return SelectedAttention({}, args); });
}
void BM_SelectedAttentionBackward(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  auto args = bench.BackwardArgs<BranchBackwardArgs>(kSel);
  args.blocks = bench.forward.saved.blocks;
  Run(state, s, [&] { return SelectedAttentionBackward({}, args); });
}

void BM_WindowAttention(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  const auto args = bench.ForwardArgs<BranchArgs>(kWin);
  Run(state, s, [&] { return WindowAttention({}, args); });
}
void BM_WindowAttentionBackward(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  const auto args = bench.BackwardArgs<BranchBackwardArgs>(kWin);
  Run(state, s, [&] { return WindowAttentionBackward({}, args); });
}

void BM_Gate(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  const NsaLayerSaved& saved = bench.forward.saved;
  const GateArgs args{.shape = s,
                      .q = Span(bench.layer.q),
                      .params = bench.layer.params().gate,
                      .o_branch = {saved.o[0], saved.o[1], saved.o[2]},
                      .gates = saved.gates,
                      .o = Span(bench.o),
                      .gate_stats = std::span<float>(bench.forward.gate_stats),
                      .q_mean = saved.q_mean};
  Run(state, s, [&] { return Gate({}, args); });
}
void BM_GateBackward(benchmark::State& state, const NsaShape& s) {
  Bench bench(s);
  const NsaLayerSaved& saved = bench.forward.saved;
  std::vector<float> d_o_branch[3] = {bench.o, bench.o, bench.o}, dq_mean(s.k_size());
  const GateBackwardArgs args{
      .shape = s,
      .q_mean = saved.q_mean,
      .params = bench.layer.params().gate,
      .o_branch = {saved.o[0], saved.o[1], saved.o[2]},
      .gates = saved.gates,
      .d_o = Span(bench.d_o),
      .d_o_branch = {Span(d_o_branch[0]), Span(d_o_branch[1]), Span(d_o_branch[2])},
      .dq_mean = Span(dq_mean),
      .grads = GradsOf(bench.backward.gate)};
  Run(state, s, [&] { return GateBackward({}, args); });
}

// The composed layer. Inputs and outputs are reused between iterations.
void BM_Layer(benchmark::State& state, const NsaShape& s, Phi phi, bool backward) {
  Bench bench(s, phi);
  const Layer& layer = bench.layer;
  BackwardOut& grads = bench.backward;
  const Tensor saved = Bytes(bench.forward.saved_memory, NsaLayerSavedBytes(layer.config));
  const Tensor workspace = Bytes(bench.forward.workspace, NsaLayerWorkspaceBytes(layer.config));
  NsaLayerArgs args{.config = layer.config,
                    .params = layer.params(),
                    .q = Span(layer.q),
                    .saved = saved,
                    .workspace = workspace,
                    .o = Span(bench.o)};
  NsaLayerBackwardArgs back{.config = layer.config,
                            .params = layer.params(),
                            .o = Span(bench.o),
                            .saved = saved,
                            .workspace = workspace,
                            .d_o = Span(bench.d_o),
                            .dq = Span(grads.dq)};
  back.grads = {GradsOf(grads.gate), GradsOf(grads.phi_k), GradsOf(grads.phi_v)};
  for (int c = 0; c < kBranches; ++c) {
    args.k[c] = Span(layer.k[c]);
    args.v[c] = back.v[c] = Span(layer.v[c]);
    back.dk[c] = Span(grads.dk[c]);
    back.dv[c] = Span(grads.dv[c]);
  }
  Run(state, s, [&] {
    const absl::Status status = NsaLayer({}, args);
    return status.ok() && backward ? NsaLayerBackward({}, back) : status;
  });
}

#define NSA_BENCH_SHAPES(function)                                                      \
  BENCHMARK_CAPTURE(function, toy, kToy)->Unit(benchmark::kMicrosecond)->UseRealTime(); \
  BENCHMARK_CAPTURE(function, m7c, kM7c)->Unit(benchmark::kMicrosecond)->UseRealTime()
#define NSA_BENCH_PHI(function)                           \
  BENCHMARK_CAPTURE(function, toy / avg, kToy, Phi::kAvg) \
      ->Unit(benchmark::kMicrosecond)                     \
      ->UseRealTime();                                    \
  BENCHMARK_CAPTURE(function, toy / mlp, kToy, Phi::kMlp) \
      ->Unit(benchmark::kMicrosecond)                     \
      ->UseRealTime();                                    \
  BENCHMARK_CAPTURE(function, m7c / avg, kM7c, Phi::kAvg) \
      ->Unit(benchmark::kMicrosecond)                     \
      ->UseRealTime();                                    \
  BENCHMARK_CAPTURE(function, m7c / mlp, kM7c, Phi::kMlp) \
      ->Unit(benchmark::kMicrosecond)                     \
      ->UseRealTime()

NSA_BENCH_SHAPES(BM_Rope);
NSA_BENCH_PHI(BM_CompressKeys);
NSA_BENCH_PHI(BM_CompressKeysBackward);
NSA_BENCH_SHAPES(BM_CompressedAttention);
NSA_BENCH_SHAPES(BM_CompressedAttentionBackward);
NSA_BENCH_SHAPES(BM_SelectBlocks);
NSA_BENCH_SHAPES(BM_SelectedAttention);
NSA_BENCH_SHAPES(BM_SelectedAttentionBackward);
NSA_BENCH_SHAPES(BM_WindowAttention);
NSA_BENCH_SHAPES(BM_WindowAttentionBackward);
NSA_BENCH_SHAPES(BM_Gate);
NSA_BENCH_SHAPES(BM_GateBackward);
BENCHMARK_CAPTURE(BM_Layer, toy / avg / forward, kToy, Phi::kAvg, false)->UseRealTime();
BENCHMARK_CAPTURE(BM_Layer, toy / avg / forward_backward, kToy, Phi::kAvg, true)->UseRealTime();
BENCHMARK_CAPTURE(BM_Layer, toy / mlp / forward_backward, kToy, Phi::kMlp, true)->UseRealTime();
BENCHMARK_CAPTURE(BM_Layer, m7c / avg / forward, kM7c, Phi::kAvg, false)->UseRealTime();
BENCHMARK_CAPTURE(BM_Layer, m7c / avg / forward_backward, kM7c, Phi::kAvg, true)->UseRealTime();
BENCHMARK_CAPTURE(BM_Layer, m7c / mlp / forward_backward, kM7c, Phi::kMlp, true)->UseRealTime();

}  // namespace
}  // namespace nsa::testing

BENCHMARK_MAIN();
