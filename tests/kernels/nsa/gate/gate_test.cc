#include "kernels/nsa/gate/gate.h"

#include "gtest/gtest.h"
#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

struct GateCase {
  GateCase(const NsaShape& shape, GateKind gate_kind, std::array<bool, 3> present, uint32_t seed)
      : s(shape), kind(gate_kind), q(Random(shape.q_size(), seed)) {
    for (int c = 0; c < 3; ++c) {
      if (present[c]) o_branch[c] = Random(s.o_size(), seed + 1 + c), ++n;
    }
    params = RandomGate(s, n, seed + 10);
    gates = Poisoned(s.k_size() / s.d_k * n);
    o = Poisoned(s.o_size());
    q_mean = Poisoned(s.k_size());
  }

  absl::Status Run() {
    return Gate({}, {.shape = s,
                     .kind = kind,
                     .q = Span(q),
                     .params = ParamsOf(params),
                     .o_branch = Branches(),
                     .gates = Span(gates),
                     .o = Span(o),
                     .gate_stats = std::span<float>(stats),
                     .q_mean = Span(q_mean)});
  }
  std::array<ConstTensor, 3> Branches() const {
    std::array<ConstTensor, 3> out;
    for (int c = 0; c < 3; ++c) {
      if (!o_branch[c].empty()) out[c] = Span(o_branch[c]);
    }
    return out;
  }

  NsaShape s;
  GateKind kind;
  int n = 0;
  std::vector<float> q, gates, o, q_mean;
  std::array<std::vector<float>, 3> o_branch;
  GateValues params;
  std::array<float, kGateStats> stats = {};
};

// As for a score: sums of dk and of dk/2 products (√dk/4), two exponentials and two divisions.
double Bound(const NsaShape& s) { return kLambda * kUnit * (std::sqrt(s.d_k) / 4 + 4); }

oracle::Array OracleOutput(const GateCase& c, const oracle::Array& q, const oracle::Gate& gate,
                           const std::array<oracle::Array, 3>& o_branch) {
  const oracle::Array gates = oracle::Gates(c.s, c.kind, c.n, q, gate);
  oracle::Array o(c.s.o_size(), 0.0);
  for (size_t i = 0; i < o.size(); ++i) {
    const size_t row = i / (c.s.d_v * c.s.heads_per_group());
    size_t at = row * c.n;
    for (const oracle::Array& branch : o_branch) {
      if (!branch.empty()) o[i] += gates[at++] * branch[i];
    }
  }
  return o;
}

oracle::Gate ToOracle(const GateValues& gate) {
  return {Double(gate.fc1_w), Double(gate.fc1_b), Double(gate.fc2_w), Double(gate.fc2_b)};
}
std::array<oracle::Array, 3> ToOracle(const std::array<std::vector<float>, 3>& branches) {
  return {Double(branches[0]), Double(branches[1]), Double(branches[2])};
}

TEST(Gate, ForwardEqualsTheFormulaForEverySubsetOfTwoOrThree) {
  for (const Case& shape : SmallCases()) {
    for (const GateKind kind : {GateKind::kSoftmax, GateKind::kSigmoid}) {
      for (const auto& present : {std::array{true, true, true}, std::array{true, true, false},
                                  std::array{false, true, true}, std::array{true, false, true}}) {
        GateCase c(shape.shape, kind, present, 1);
        ASSERT_OK(c.Run());
        EXPECT_TRUE(Close("gates", c.gates,
                          oracle::Gates(c.s, kind, c.n, Double(c.q), ToOracle(c.params)),
                          {{"row", c.s.k_size() / c.s.d_k}, {"branch", c.n}}, Bound(c.s)));
        EXPECT_TRUE(Close("o", c.o,
                          OracleOutput(c, Double(c.q), ToOracle(c.params), ToOracle(c.o_branch)),
                          QueryDims(c.s, c.s.d_v), 3 * Bound(c.s)));
      }
    }
  }
}

// As where q is part of a matrix with all projections.
TEST(Gate, ReadsTokensThatAreApart) {
  const NsaShape s{2, 5, 6, 2, 16, 16, 4, 2, 2, 3, 4};
  GateCase c(s, GateKind::kSigmoid, {true, true, true}, 1);
  ASSERT_OK(c.Run());
  const int64_t width = int64_t{s.n_heads} * s.d_k, stride = width + 24;
  std::vector<float> wide = Poisoned(s.batch * s.seq_len * stride);
  for (int64_t token = 0; token < int64_t{1} * s.batch * s.seq_len; ++token) {
    std::copy_n(c.q.begin() + token * width, width, wide.begin() + token * stride);
  }
  std::vector<float> gates = Poisoned(static_cast<int64_t>(c.gates.size())),
                     o = Poisoned(s.o_size()), q_mean = Poisoned(s.k_size());
  GateArgs args = {.shape = s,
                   .kind = c.kind,
                   .q = Span(wide),
                   .q_stride = stride,
                   .params = ParamsOf(c.params),
                   .o_branch = c.Branches(),
                   .gates = Span(gates),
                   .o = Span(o),
                   .q_mean = Span(q_mean)};
  ASSERT_OK(Gate({}, args));
  EXPECT_EQ(gates, c.gates);
  EXPECT_EQ(o, c.o);
  EXPECT_EQ(q_mean, c.q_mean);
  for (const int64_t wrong : {int64_t{4}, width - 8, stride + 4, stride + 8}) {
    args.q_stride = wrong;
    EXPECT_EQ(Gate({}, args).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(Gate, GradientsEqualCentralDifferences) {
  const NsaShape s{1, 5, 4, 2, 16, 16, 4, 2, 2, 3, 4};
  for (const GateKind kind : {GateKind::kSoftmax, GateKind::kSigmoid}) {
    GateCase c(s, kind, {true, false, true}, 2);
    ASSERT_OK(c.Run());
    const std::vector<float> d_o = Random(s.o_size(), 3);
    std::array<std::vector<float>, 3> d_branch;
    std::array<Tensor, 3> d_branch_views;
    for (int i : {0, 2}) {
      d_branch[i] = Poisoned(s.o_size());
      d_branch_views[i] = Span(d_branch[i]);
    }
    std::vector<float> dq_mean = Poisoned(s.k_size());
    GateValues grads = c.params;
    for (auto* g : {&grads.fc1_w, &grads.fc1_b, &grads.fc2_w, &grads.fc2_b}) {
      std::fill(g->begin(), g->end(), 0.0f);
    }
    for (int call = 0; call < 2; ++call) {  // parameter gradients accumulate, the others do not
      ASSERT_OK(GateBackward({}, {.shape = s,
                                  .kind = kind,
                                  .q_mean = Span(c.q_mean),
                                  .params = ParamsOf(c.params),
                                  .o_branch = c.Branches(),
                                  .gates = Span(c.gates),
                                  .d_o = Span(d_o),
                                  .d_o_branch = d_branch_views,
                                  .dq_mean = Span(dq_mean),
                                  .grads = GradsOf(grads)}));
    }
    std::vector<float> dq(s.q_size(), 0.0f);
    ASSERT_OK(AddMeanGradient({}, {.shape = s, .dq_mean = Span(dq_mean), .dq = Span(dq)}));

    oracle::Array q = Double(c.q);
    oracle::Gate params = ToOracle(c.params);
    std::array<oracle::Array, 3> o_branch = ToOracle(c.o_branch);
    const auto loss = [&] {
      return oracle::Dot(OracleOutput(c, q, params, o_branch), Double(d_o));
    };
    // d_gate sums h·dv products; parameters sum over the rows as well.
    const double bound = Bound(s) * std::sqrt(2.0 * 16 * 10);
    const auto twice = [](oracle::Array x) {
      for (double& value : x) value *= 2;
      return x;
    };
    const auto expect = [&](const char* name, const std::vector<float>& got,
                            const oracle::Array& want) {
      EXPECT_TRUE(Close(name, got, want, {{"i", static_cast<int64_t>(got.size())}}, bound));
    };
    expect("dq", dq, oracle::NumericGradient(&q, loss));
    expect("d_o_cmp", d_branch[0], oracle::NumericGradient(&o_branch[0], loss));
    expect("d_o_win", d_branch[2], oracle::NumericGradient(&o_branch[2], loss));
    expect("fc1_w", grads.fc1_w, twice(oracle::NumericGradient(&params.fc1_w, loss)));
    expect("fc1_b", grads.fc1_b, twice(oracle::NumericGradient(&params.fc1_b, loss)));
    expect("fc2_w", grads.fc2_w, twice(oracle::NumericGradient(&params.fc2_w, loss)));
    expect("fc2_b", grads.fc2_b, twice(oracle::NumericGradient(&params.fc2_b, loss)));
  }
}

// A case whose parameters make every gate a constant.
GateCase ConstantGate(GateKind kind, std::vector<float> logits) {
  GateCase c(SmallCases()[0].shape, kind, {true, true, true}, 4);
  std::fill(c.params.fc2_w.begin(), c.params.fc2_w.end(), 0.0f);
  c.params.fc2_b = std::move(logits);
  EXPECT_OK(c.Run());
  return c;
}

TEST(Gate, StatisticsOfEqualBranches) {
  for (const GateKind kind : {GateKind::kSoftmax, GateKind::kSigmoid}) {
    const GateStats stats = ReadGateStats(ConstantGate(kind, {1, 1, 1}).stats);
    EXPECT_NEAR(stats.entropy_mean, std::log(3.0), 1e-6);
    EXPECT_NEAR(stats.entropy_min, std::log(3.0), 1e-6);
    EXPECT_NEAR(stats.max_gate_mean, 1.0 / 3, 1e-6);
    EXPECT_NEAR(stats.max_gate_max, 1.0 / 3, 1e-6);
    EXPECT_EQ(stats.collapse_ratio, 0);
    for (float share : stats.branch_share) EXPECT_NEAR(share, 1.0 / 3, 1e-6);
    const double gate = kind == GateKind::kSoftmax ? 1.0 / 3 : oracle::Sigmoid(1);
    for (float mean : stats.gate_mean) EXPECT_NEAR(mean, gate, 1e-6);
  }
}

TEST(Gate, StatisticsOfACollapsedGate) {
  const GateStats stats = ReadGateStats(ConstantGate(GateKind::kSoftmax, {0, 20, 0}).stats);
  EXPECT_NEAR(stats.entropy_mean, 0, 1e-6);
  EXPECT_NEAR(stats.max_gate_max, 1, 1e-6);
  EXPECT_EQ(stats.collapse_ratio, 1);
  EXPECT_NEAR(stats.branch_share[1], 1, 1e-6);
}

// The shares of such gates are healthy: a third each.
TEST(Gate, SigmoidGatesThatAreAllNearZeroHaveCollapsed) {
  const GateStats off = ReadGateStats(ConstantGate(GateKind::kSigmoid, {-12, -12, -12}).stats);
  EXPECT_NEAR(off.entropy_mean, std::log(3.0), 1e-6);
  EXPECT_NEAR(off.branch_share[1], 1.0 / 3, 1e-6);
  EXPECT_NEAR(off.gate_mean[1], oracle::Sigmoid(-12), 1e-9);
  EXPECT_EQ(off.collapse_ratio, 1);
  // Sums of 0.042 and 0.054.
  EXPECT_EQ(
      ReadGateStats(ConstantGate(GateKind::kSigmoid, {-4.25, -4.25, -4.25}).stats).collapse_ratio,
      1);
  EXPECT_EQ(ReadGateStats(ConstantGate(GateKind::kSigmoid, {-4, -4, -4}).stats).collapse_ratio, 0);
}

TEST(Gate, AnAbsentBranchHasNoShare) {
  GateCase c(SmallCases()[0].shape, GateKind::kSoftmax, {true, false, true}, 5);
  ASSERT_OK(c.Run());
  const GateStats stats = ReadGateStats(c.stats);
  EXPECT_EQ(stats.branch_share[1], 0);
  EXPECT_EQ(stats.gate_mean[1], 0);
  EXPECT_NEAR(stats.gate_mean[2], stats.branch_share[2], 1e-6);
  EXPECT_NEAR(stats.branch_share[0] + stats.branch_share[2], 1, 1e-5);
}

TEST(Gate, HugeLogitsStayFinite) {
  for (const GateKind kind : {GateKind::kSoftmax, GateKind::kSigmoid}) {
    const GateCase c = ConstantGate(kind, {1e4f, -1e4f, 0});
    for (float x : c.o) ASSERT_TRUE(std::isfinite(x));
    for (float x : c.stats) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST(Gate, OneBranchIsRefused) {
  GateCase c(SmallCases()[0].shape, GateKind::kSoftmax, {true, false, false}, 6);
  EXPECT_THAT(c.Run(), StatusIs(absl::StatusCode::kInvalidArgument,
                                ::testing::HasSubstr("o_branch: 1 branches (from 2 to 3)")));
}

}  // namespace
}  // namespace nsa::testing
