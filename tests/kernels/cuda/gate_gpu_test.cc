// The gate on the GPU against the CPU implementation, and the statistics of rows that only the
// GPU's gate writes against fp64. Outputs start as NaN, and each case runs twice to check for equal
// bits.
#include "kernels/nsa/gate/gate.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

using Tensors = std::vector<DeviceTensor>;

std::vector<Case> Shapes() {
  std::vector<Case> cases = SmallCases();
  // {B, S, H, G, dk, dv, l, d, l', n, w}
  cases.push_back({"m7c", {2, 1111, 12, 2, 64, 64, 32, 16, 64, 16, 512}});
  cases.push_back({"wide heads", {1, 700, 8, 2, 128, 128, 32, 16, 64, 6, 256}});
  cases.push_back(
      {"wide heads, widths of the paper", {1, 700, 32, 2, 192, 128, 32, 16, 64, 6, 256}});
  cases.push_back(
      {"wide heads, keys of 192, many rows", {1, 5003, 8, 8, 192, 16, 32, 16, 64, 6, 256}});
  cases.push_back({"narrow heads", {1, 3000, 8, 1, 16, 32, 16, 8, 32, 4, 64}});
  return cases;
}

void Round(std::vector<float>* values) { *values = RoundToBf16(*values); }

class GateOnGpu : public GpuTestWith<Case> {};

struct GateInputs {
  std::vector<float> q, d_o;
  std::array<std::vector<float>, 3> o, lse;
  GateValues params;
  int n = 0;
};
GateInputs InputsOf(const NsaShape& s, const std::array<bool, 3>& present) {
  GateInputs in;
  in.q = RoundToBf16(Random(s.q_size(), 1)), in.d_o = RoundToBf16(Random(s.o_size(), 2));
  for (int c = 0; c < 3; ++c) {
    if (!present[c]) continue;
    in.o[c] = RoundToBf16(Random(s.o_size(), 3 + c)), ++in.n;
    in.lse[c] = Random(s.o_size() / s.d_v, 6 + c, 5);
  }
  in.params = RandomGate(s, in.n, 10);
  for (auto* v : {&in.params.fc1_w, &in.params.fc1_b, &in.params.fc2_w, &in.params.fc2_b}) Round(v);
  return in;
}

// The statistics that a branch's backward reads, in fp64: (lse − ln gate) · log2 e and Σ d_o·o of
// every row. `slot` is the branch's place among those present.
std::vector<double> StatisticsOf(const NsaShape& s, const GateInputs& in,
                                 const std::vector<float>& gates, int branch, int slot) {
  std::vector<double> stats;
  for (int64_t row = 0; row < s.o_size() / s.d_v; ++row) {
    const double gate = gates[row / s.heads_per_group() * in.n + slot];
    double delta = 0;
    for (int64_t i = row * s.d_v; i < (row + 1) * s.d_v; ++i) {
      delta += static_cast<double>(in.d_o[i]) * in.o[branch][i];
    }
    stats.push_back(in.lse[branch][row] / std::log(2.0) - std::log2(gate));
    stats.push_back(delta);
  }
  return stats;
}

// What forward and backward write on the CPU, in the order of CompareGate's tensors.
std::vector<Output> OutputsOf(const std::vector<float>& gates, const std::vector<float>& o,
                              const std::vector<float>& stats, const std::vector<float>& dq_mean,
                              const GateValues& grads, const GateValues& before) {
  return {{"gates", gates, DType::kF32, 1e-5},
          {"o", o},
          {"stats", stats, DType::kF32, 1e-4, 1e-5},
          {"dq_mean", dq_mean, DType::kBf16, kBf16Output, 1e-6},
          {"fc1_w", grads.fc1_w, DType::kF32, 1e-4, 1e-5, before.fc1_w},
          {"fc1_b", grads.fc1_b, DType::kF32, 1e-4, 1e-5, before.fc1_b},
          {"fc2_w", grads.fc2_w, DType::kF32, 1e-4, 1e-5, before.fc2_w},
          {"fc2_b", grads.fc2_b, DType::kF32, 1e-4, 1e-5, before.fc2_b}};
}

void CompareGate(const NsaShape& s, GateKind kind, const std::array<bool, 3>& present) {
  const GateInputs in = InputsOf(s, present);
  const int64_t rows = s.k_size() / s.d_k;
  std::vector<float> gates = Poisoned(rows * in.n), o = Poisoned(s.o_size()),
                     stats = Poisoned(kGateStats), dq_mean = Poisoned(s.k_size()),
                     q_mean = Poisoned(s.k_size());
  GateArgs args{.shape = s,
                .kind = kind,
                .q = Span(in.q),
                .params = ParamsOf(in.params),
                .gates = Span(gates),
                .o = Span(o),
                .gate_stats = Span(stats),
                .q_mean = Span(q_mean)};
  GateBackwardArgs back{.shape = s,
                        .kind = kind,
                        .q_mean = Span(std::as_const(q_mean)),
                        .params = ParamsOf(in.params),
                        .gates = Span(std::as_const(gates)),
                        .d_o = Span(in.d_o),
                        .dq_mean = Span(dq_mean)};
  GateValues before = RandomGate(s, in.n, 50), grads = before;
  back.grads = GradsOf(grads);
  std::array<std::vector<float>, 3> d_branch;
  for (int c = 0; c < 3; ++c) {
    if (!present[c]) continue;
    d_branch[c] = Poisoned(s.o_size());
    args.o_branch[c] = back.o_branch[c] = Span(in.o[c]);
    back.d_o_branch[c] = Span(d_branch[c]);
  }
  ASSERT_TRUE(Gate({}, args).ok());
  ASSERT_TRUE(GateBackward({}, back).ok());

  const DeviceTensor q = ToDevice(in.q), d_o = ToDevice(in.d_o), fc1_w = ToDevice(in.params.fc1_w),
                     fc1_b = ToDevice(in.params.fc1_b), fc2_w = ToDevice(in.params.fc2_w),
                     fc2_b = ToDevice(in.params.fc2_b);
  args.q = q, back.d_o = d_o;
  args.params = back.params = {fc1_w, fc1_b, fc2_w, fc2_b};
  back.d_o_branch = {};
  std::vector<DeviceTensor> branches, lse;
  for (int c = 0; c < 3; ++c) {
    branches.push_back(ToDevice(in.o[c]));
    lse.push_back(ToDeviceF32(in.lse[c]));
  }
  std::vector<Output> outputs = OutputsOf(gates, o, stats, dq_mean, grads, before);
  for (int c = 0, slot = 0; c < 3; ++c) {
    if (!present[c]) continue;
    const std::vector<double> want = StatisticsOf(s, in, gates, c, slot++);
    outputs.push_back({"statistics", {want.begin(), want.end()}, DType::kF32, 1e-5, 1e-5});
  }
  outputs.push_back({"q_mean", q_mean, DType::kF32, 1e-6});
  // The tokens of q side by side, and then as in a matrix with all projections.
  const int64_t width = int64_t{1} * s.n_heads * s.d_k, tokens = s.q_size() / width;
  std::vector<float> apart = Poisoned(tokens * (width + 24));
  for (int64_t token = 0; token < tokens; ++token) {
    std::copy_n(in.q.begin() + token * width, width, apart.begin() + token * (width + 24));
  }
  const DeviceTensor wide = ToDevice(apart);
  const auto run = [&](const Tensors& t) {
    args.gates = t[0], args.o = t[1], args.gate_stats = t[2];
    args.q_mean = t.back(), back.q_mean = t.back();
    back.gates = t[0], back.dq_mean = t[3], back.grads = {t[4], t[5], t[6], t[7]};
    for (int c = 0, i = 8; c < 3; ++c) {
      if (!present[c]) continue;
      args.o_branch[c] = back.o_branch[c] = branches[c];
      back.lse[c] = lse[c], back.stats[c] = t[i++];
    }
    const absl::Status status = Gate(Gpu::Get().exec(), args);
    return status.ok() ? GateBackward(Gpu::Get().exec(), back) : status;
  };
  ExpectOnGpu(outputs, run);
  args.q = wide, args.q_stride = width + 24;
  ExpectOnGpu(outputs, run);
}

// Checks one branch's statistics of a gate with three branches. A shift has two roundings and the
// error of a logarithm, each below 2u of its terms; δ is a chain of eight products and a tree of at
// most four additions.
void ExpectStatistics(const NsaShape& s, const GateInputs& in, const std::vector<float>& gates,
                      int branch, const std::vector<float>& got) {
  const std::vector<double> want = StatisticsOf(s, in, gates, branch, branch);
  for (int64_t row = 0; row < s.o_size() / s.d_v; ++row) {
    const float gate = gates[row / s.heads_per_group() * 3 + branch];
    double terms = 0;
    for (int64_t i = row * s.d_v; i < (row + 1) * s.d_v; ++i) {
      terms += std::abs(in.d_o[i] * in.o[branch][i]);
    }
    ASSERT_NEAR(got[2 * row + 1], want[2 * row + 1], 12 * kUnit * terms) << "row " << row;
    if (std::isinf(want[2 * row])) {
      ASSERT_EQ(got[2 * row], INFINITY) << "row " << row;
      continue;
    }
    const double size = std::abs(in.lse[branch][row] / std::log(2.0)) + std::abs(std::log2(gate));
    ASSERT_NEAR(got[2 * row], want[2 * row], 4 * kUnit * size) << "row " << row << " " << gate;
  }
}

TEST_P(GateOnGpu, EqualsTheCpuTruthForEverySubset) {
  for (const GateKind kind : {GateKind::kSoftmax, GateKind::kSigmoid}) {
    for (const auto& present : {std::array{true, true, true}, std::array{true, true, false},
                                std::array{false, true, true}, std::array{true, false, true}}) {
      SCOPED_TRACE(::testing::Message() << "sigmoid " << (kind == GateKind::kSigmoid)
                                        << " branches " << present[0] << present[1] << present[2]);
      CompareGate(GetParam().shape, kind, present);
    }
  }
}

// Gates of every size and rows that see no key. A row with a gate of 0 or without keys gets +inf,
// which makes all its weights 0.
TEST_P(GateOnGpu, TheStatisticsOfRowsEqualTheirFormula) {
  const NsaShape& s = GetParam().shape;
  GateInputs in = InputsOf(s, {true, true, true});
  const int64_t rows = s.o_size() / s.d_v;
  std::vector<float> gates = Random(rows / s.heads_per_group() * 3, 70);
  const float special[] = {0.0f, 1.0f, 1e-30f, std::numeric_limits<float>::min()};
  for (size_t i = 0; i < gates.size(); ++i) {
    gates[i] = i % 3 == 0 ? special[i / 3 % 4] : std::abs(gates[i]);
  }
  for (int64_t row = 0; row < rows; row += 7) {
    in.lse[1][row] = INFINITY;
    std::fill_n(in.o[1].begin() + row * s.d_v, s.d_v, 0.0f);
  }
  const DeviceTensor q_mean = ToDeviceF32(Random(s.k_size(), 1)), d_o = ToDevice(in.d_o),
                     fc1_w = ToDevice(in.params.fc1_w), fc1_b = ToDevice(in.params.fc1_b),
                     fc2_w = ToDevice(in.params.fc2_w), fc2_b = ToDevice(in.params.fc2_b),
                     gates_gpu = ToDeviceF32(gates), dq_mean(s.k_size(), DType::kBf16);
  GateBackwardArgs args{.shape = s,
                        .q_mean = q_mean,
                        .params = {fc1_w, fc1_b, fc2_w, fc2_b},
                        .gates = gates_gpu,
                        .d_o = d_o,
                        .dq_mean = dq_mean};
  Tensors tensors, stats, grads;
  for (int c = 0; c < 3; ++c) {
    tensors.push_back(ToDevice(in.o[c]));
    args.o_branch[c] = tensors.back();
    tensors.push_back(ToDeviceF32(in.lse[c]));
    args.lse[c] = tensors.back();
    stats.emplace_back(2 * rows, DType::kF32);
    args.stats[c] = stats.back();
  }
  for (const auto* values :
       {&in.params.fc1_w, &in.params.fc1_b, &in.params.fc2_w, &in.params.fc2_b}) {
    grads.push_back(ToDeviceF32(std::vector<float>(values->size(), 0.0f)));
  }
  args.grads = {grads[0], grads[1], grads[2], grads[3]};
  const absl::Status status = GateBackward(Gpu::Get().exec(), args);
  ASSERT_TRUE(status.ok()) << status;
  for (int c = 0; c < 3; ++c) {
    ExpectStatistics(s, in, gates, c, stats[c].Floats());
  }
  for (const float x : dq_mean.Floats()) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(GateOnGpu, TheMeansGradientIsAddedToEveryHead) {
  const NsaShape& s = GetParam().shape;
  const std::vector<float> mean = RoundToBf16(Random(s.k_size(), 1)),
                           before = RoundToBf16(Random(s.q_size(), 2));
  std::vector<float> dq = before;
  ASSERT_TRUE(AddMeanGradient({}, {s, Span(mean), Span(dq)}).ok());
  const DeviceTensor mean_gpu = ToDevice(mean);
  ExpectOnGpu({{"dq", dq, DType::kBf16, kBf16Output, 1e-6, before}}, [&](const Tensors& t) {
    return AddMeanGradient(Gpu::Get().exec(), {s, mean_gpu, t[0]});
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, GateOnGpu, ::testing::ValuesIn(Shapes()), CaseName());

}  // namespace
}  // namespace nsa::testing
