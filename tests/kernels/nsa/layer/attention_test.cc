// Tests the composed layer against the fp64 oracle, and its gradients against central differences
// of that oracle.
#include <omp.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

NsaLayerConfig ConfigOf(const NsaShape& shape) { return {.shape = shape}; }

// The gate adds its own rounding: an MLP of width dk, then a sum of three branches.
double LayerBound(const NsaShape& s) { return 3 * OutputBound(s); }

class EveryLayerShape : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Attention, EveryLayerShape, ::testing::ValuesIn(SmallCases()));

TEST_P(EveryLayerShape, LayerEqualsBruteForce) {
  for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
    for (const GateKind gate : {GateKind::kSoftmax, GateKind::kSigmoid}) {
      NsaLayerConfig config = ConfigOf(GetParam().shape);
      config.phi = phi;
      config.gate = gate;
      const Layer layer = RandomLayer(config, 1);
      const ForwardOut got = Forward(layer);
      // The oracle gets the kernel's choice: where two scores are equal within rounding, either
      // block is right.
      const std::vector<int32_t> blocks = Ints(got.blocks());
      const oracle::LayerResult want = oracle::Forward(ToOracle(layer), &blocks);
      EXPECT_TRUE(Close("o", got.o, want.o, QueryDims(config.shape, config.shape.d_v),
                        LayerBound(config.shape)));
    }
  }
}

TEST_P(EveryLayerShape, NormalizedLayerEqualsBruteForce) {
  for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
    NsaLayerConfig config = ConfigOf(GetParam().shape);
    config.phi = phi, config.qk_norm = true, config.norm_eps = 0.25f;
    const Layer layer = RandomLayer(config, 31);
    const ForwardOut got = Forward(layer);
    const std::vector<int32_t> blocks = Ints(got.blocks());
    const oracle::LayerResult want = oracle::Forward(ToOracle(layer), &blocks);
    EXPECT_TRUE(Close("o", got.o, want.o, QueryDims(config.shape, config.shape.d_v),
                      LayerBound(config.shape)));
  }
}

TEST_P(EveryLayerShape, LayerWithStretchedFrequenciesEqualsBruteForce) {
  NsaLayerConfig config = ConfigOf(GetParam().shape);
  config.rope_scaling = {
      .kind = RopeScaling::Kind::kYarn, .factor = 4, .original = 300, .low = 1, .high = 32};
  const Layer layer = RandomLayer(config, 32);
  const ForwardOut got = Forward(layer);
  const std::vector<int32_t> blocks = Ints(got.blocks());
  const oracle::LayerResult want = oracle::Forward(ToOracle(layer), &blocks);
  EXPECT_TRUE(Close("o", got.o, want.o, QueryDims(config.shape, config.shape.d_v),
                    LayerBound(config.shape)));
}

TEST_P(EveryLayerShape, LayerChoosesTheOraclesBlocks) {
  const Layer layer = RandomLayer(ConfigOf(GetParam().shape), 2);
  const ForwardOut got = Forward(layer);
  const oracle::LayerResult want = oracle::Forward(ToOracle(layer));
  // Random scores differ by far more than the rounding error.
  EXPECT_EQ(Ints(got.blocks()), want.blocks);
}

TEST_P(EveryLayerShape, NoRowIsEmptyOrNaN) {
  const Layer layer = RandomLayer(ConfigOf(GetParam().shape), 3);
  const ForwardOut got = Forward(layer);
  const NsaShape& s = layer.config.shape;
  for (int64_t row = 0; row < s.o_size() / s.d_v; ++row) {
    double sum = 0;
    for (int64_t c = 0; c < s.d_v; ++c) sum += std::abs(got.o[row * s.d_v + c]);
    EXPECT_GT(sum, 0) << "t=" << row / s.n_heads % s.seq_len;
    EXPECT_TRUE(std::isfinite(sum)) << "t=" << row / s.n_heads % s.seq_len;
  }
}

TEST_P(EveryLayerShape, ReadsWhatTheFormulaSays) {
  const Layer layer = RandomLayer(ConfigOf(GetParam().shape), 4);
  const ForwardOut got = Forward(layer);
  EXPECT_EQ(got.keys_read, KeysExpected(layer.config));
  const NsaShape& s = layer.config.shape;
  EXPECT_EQ(got.selection[0], got.keys_read[kSel]);
  EXPECT_EQ(got.selection[2], int64_t{s.batch} * s.seq_len * s.n_kv_groups);
}

TEST_P(EveryLayerShape, BackwardLeavesNoPoisonAndNoNaN) {
  for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
    NsaLayerConfig config = ConfigOf(GetParam().shape);
    config.phi = phi;
    const Layer layer = RandomLayer(config, 5);
    ForwardOut forward = Forward(layer);
    const std::vector<float> d_o = Random(config.shape.o_size(), 6);
    const BackwardOut got = Backward(layer, forward, d_o);
    for (const auto& values : {got.dq, got.dk[0], got.dk[1], got.dk[2], got.dv[0], got.dv[1],
                               got.dv[2], got.gate.fc1_w, got.phi_k.w1, got.phi_v.pe}) {
      for (float x : values) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

// Every element of every input and parameter, all branches, both gates, both φ.
void ExpectGradientsEqualCentralDifferences(Phi phi, GateKind gate, bool qk_norm = false) {
  NsaLayerConfig config = ConfigOf(TinyShape());
  config.phi = phi;
  config.gate = gate;
  config.rope_scale = 2;
  config.rope_scaling = {
      .kind = RopeScaling::Kind::kLlama3, .factor = 4, .original = 16, .low = 1, .high = 4};
  config.qk_norm = qk_norm;
  if (qk_norm) config.norm_eps = 0.25f;
  const NsaShape& s = config.shape;
  const Layer layer = RandomLayer(config, 7);
  ForwardOut forward = Forward(layer);
  const std::vector<float> d_o = Random(s.o_size(), 8);
  const BackwardOut got = Backward(layer, forward, d_o);

  oracle::Layer exact = ToOracle(layer);
  const std::vector<int32_t> blocks = Ints(forward.blocks());
  const std::vector<double> weights = Double(d_o);
  const auto loss = [&] { return oracle::Dot(oracle::Forward(exact, &blocks).o, weights); };
  const double bound = 3 * GradientBound(s);
  const auto expect = [&](const char* name, const std::vector<float>& gradient, oracle::Array* x,
                          const Dims& dims) {
    EXPECT_TRUE(Close(name, gradient, oracle::NumericGradient(x, loss), dims, bound));
  };
  expect("dq", got.dq, &exact.q, QueryDims(s, s.d_k));
  for (int c = 0; c < kBranches; ++c) {
    expect("dk", got.dk[c], &exact.k[c], KeyDims(s, s.seq_len, s.d_k));
    expect("dv", got.dv[c], &exact.v[c], KeyDims(s, s.seq_len, s.d_v));
  }
  expect("gate.fc1_w", got.gate.fc1_w, &exact.gate.fc1_w, {{"i", 8}, {"c", 16}});
  expect("gate.fc1_b", got.gate.fc1_b, &exact.gate.fc1_b, {{"i", 8}});
  expect("gate.fc2_w", got.gate.fc2_w, &exact.gate.fc2_w, {{"branch", 3}, {"i", 8}});
  expect("gate.fc2_b", got.gate.fc2_b, &exact.gate.fc2_b, {{"branch", 3}});
  for (auto [name, phi_got, phi_exact] : {std::tuple{"phi_k", &got.phi_k, &exact.phi_k},
                                          std::tuple{"phi_v", &got.phi_v, &exact.phi_v}}) {
    SCOPED_TRACE(name);
    expect("pe", phi_got->pe, &phi_exact->pe, {{"r", s.l}, {"c", 16}});
    expect("b1", phi_got->b1, &phi_exact->b1, {{"i", 16}});
    expect("w2", phi_got->w2, &phi_exact->w2, {{"c", 16}, {"i", 16}});
    expect("b2", phi_got->b2, &phi_exact->b2, {{"c", 16}});
  }
}

TEST(Attention, GradientsEqualCentralDifferencesWithAverageAndSoftmax) {
  ExpectGradientsEqualCentralDifferences(Phi::kAvg, GateKind::kSoftmax);
}

TEST(Attention, GradientsEqualCentralDifferencesWithMlpAndSigmoid) {
  ExpectGradientsEqualCentralDifferences(Phi::kMlp, GateKind::kSigmoid);
}

TEST(Attention, GradientsEqualCentralDifferencesWithQkNorm) {
  ExpectGradientsEqualCentralDifferences(Phi::kAvg, GateKind::kSoftmax, true);
  ExpectGradientsEqualCentralDifferences(Phi::kMlp, GateKind::kSigmoid, true);
}

// The attention reads directions only; the gate reads q itself, so it is left out.
TEST(Attention, WithQkNormTheLengthsOfQueriesAndKeysDoNotMatter) {
  NsaLayerConfig config = ConfigOf(SmallCases()[0].shape);
  config.qk_norm = true;
  config.branches = {false, false, true};
  Layer layer = RandomLayer(config, 33);
  const std::vector<float> before = Forward(layer).o;
  for (float& x : layer.q) x *= 64;
  for (float& x : layer.k[kWin]) x *= 0.5f;
  const std::vector<float> after = Forward(layer).o;
  for (size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(after[i], before[i], 1e-4) << i;
}

// W1 of φ has too many elements for the test above, so random directions are used.
TEST(Attention, GradientsOfPhisFirstLayerEqualDirectionalDifferences) {
  NsaLayerConfig config = ConfigOf(TinyShape());
  config.phi = Phi::kMlp;
  const Layer layer = RandomLayer(config, 9);
  ForwardOut forward = Forward(layer);
  const std::vector<float> d_o = Random(config.shape.o_size(), 10);
  const BackwardOut got = Backward(layer, forward, d_o);
  oracle::Layer exact = ToOracle(layer);
  const std::vector<int32_t> blocks = Ints(forward.blocks());
  for (auto [gradient, x] :
       {std::pair{&got.phi_k.w1, &exact.phi_k.w1}, std::pair{&got.phi_v.w1, &exact.phi_v.w1}}) {
    for (uint32_t seed = 100; seed < 108; ++seed) {
      const oracle::Array direction = Double(Random(static_cast<int64_t>(x->size()), seed));
      const auto loss_at = [&](double step) {
        oracle::Array moved = *x;
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
        std::swap(moved, *x);
        const double loss = oracle::Dot(oracle::Forward(exact, &blocks).o, Double(d_o));
        std::swap(moved, *x);
        return loss;
      };
      const double want = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
      // A sum of 1024 products, each with an error of at most the gradient's bound: a random walk.
      EXPECT_NEAR(oracle::Dot(Double(*gradient), direction), want,
                  3 * GradientBound(config.shape) * std::sqrt(1024));
    }
  }
}

TEST(Attention, EveryParameterAndInputReceivesGradient) {
  NsaLayerConfig config = ConfigOf(SmallCases()[0].shape);
  config.phi = Phi::kMlp;
  const Layer layer = RandomLayer(config, 11);
  ForwardOut forward = Forward(layer);
  const BackwardOut got = Backward(layer, forward, Random(config.shape.o_size(), 12));
  const auto norm = [](const std::vector<float>& x) { return oracle::Dot(Double(x), Double(x)); };
  for (const auto& values :
       {got.dq,         got.dk[0],    got.dk[1],      got.dk[2],      got.dv[0],
        got.dv[1],      got.dv[2],    got.gate.fc1_w, got.gate.fc1_b, got.gate.fc2_w,
        got.gate.fc2_b, got.phi_k.pe, got.phi_k.w1,   got.phi_k.b1,   got.phi_k.w2,
        got.phi_v.pe,   got.phi_v.w1, got.phi_v.b1,   got.phi_v.w2,   got.phi_v.b2}) {
    EXPECT_GT(norm(values), 0);
  }
}

// With all blocks chosen, or a window over the whole sequence, a branch is dense attention. Each of
// these two branches is tested alone.
TEST(Attention, EqualsDenseAttentionWhenEverythingIsSelectedOrInTheWindow) {
  const NsaShape s{2, 40, 4, 2, 16, 16, 8, 4, 8, 5, 40};  // n = S_sel, w = S
  for (const Branch branch : {kSel, kWin}) {
    NsaLayerConfig config = ConfigOf(s);
    config.branches = {false, branch == kSel, branch == kWin};
    const Layer layer = RandomLayer(config, 13);
    const ForwardOut got = Forward(layer);
    const auto rope = [&](const std::vector<float>& x, int64_t heads) {
      return oracle::Rope(Double(x), s.seq_len, heads, s.d_k, 10000, 1);
    };
    const oracle::Array want =
        oracle::Attend(s, s.seq_len, rope(layer.q, s.n_heads), rope(layer.k[branch], 2),
                       Double(layer.v[branch]), oracle::SeesAllPast());
    EXPECT_TRUE(Close("o", got.o, want, QueryDims(s, s.d_v), LayerBound(s)));
  }
}

TEST(Attention, EverySubsetOfBranchesEqualsBruteForceForwardAndBackward) {
  for (int subset = 1; subset < 7; ++subset) {
    NsaLayerConfig config = ConfigOf(TinyShape());
    config.branches = {(subset & 1) != 0, (subset & 2) != 0, (subset & 4) != 0};
    SCOPED_TRACE(subset);
    const NsaShape& s = config.shape;
    const Layer layer = RandomLayer(config, 14);
    ForwardOut forward = Forward(layer);
    oracle::Layer exact = ToOracle(layer);
    const oracle::LayerResult want = oracle::Forward(exact);
    EXPECT_EQ(Ints(forward.blocks()), want.blocks);
    EXPECT_TRUE(Close("o", forward.o, want.o, QueryDims(s, s.d_v), LayerBound(s)));
    EXPECT_EQ(forward.keys_read, KeysExpected(config));
    const std::vector<float> d_o = Random(s.o_size(), 15);
    const BackwardOut got = Backward(layer, forward, d_o);
    const auto loss = [&] {
      return oracle::Dot(oracle::Forward(exact, &want.blocks).o, Double(d_o));
    };
    EXPECT_TRUE(Close("dq", got.dq, oracle::NumericGradient(&exact.q, loss), QueryDims(s, s.d_k),
                      3 * GradientBound(s)));
  }
}

TEST(Attention, IdenticalHeadsOfAGroupGiveIdenticalOutputs) {
  NsaLayerConfig config = ConfigOf(SmallCases()[8].shape);
  const NsaShape& s = config.shape;
  Layer layer = RandomLayer(config, 16);
  const int64_t h = s.heads_per_group();
  for (int64_t head = 0; head < s.q_size() / s.d_k; ++head) {
    const int64_t first = head / h * h;
    std::copy_n(layer.q.begin() + first * s.d_k, s.d_k, layer.q.begin() + head * s.d_k);
  }
  const ForwardOut got = Forward(layer);
  for (int64_t head = 0; head < s.o_size() / s.d_v; ++head) {
    const std::span<const float> o = got.o;
    ASSERT_TRUE(SameBits("o", o.subspan(head * s.d_v, s.d_v),
                         o.subspan(head / h * h * s.d_v, s.d_v), {{"c", s.d_v}}));
  }
}

TEST(Attention, SameBitsWhateverTheNumberOfThreads) {
  NsaLayerConfig config = ConfigOf(SmallCases()[0].shape);
  config.phi = Phi::kMlp;
  const Layer layer = RandomLayer(config, 17);
  const std::vector<float> d_o = Random(config.shape.o_size(), 18);
  const int before = omp_get_max_threads();
  std::vector<BackwardOut> got;
  std::vector<std::vector<float>> o;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    ForwardOut forward = Forward(layer);
    got.push_back(Backward(layer, forward, d_o));
    o.push_back(forward.o);
  }
  omp_set_num_threads(before);
  for (size_t i = 1; i < got.size(); ++i) {
    EXPECT_EQ(o[0], o[i]);
    EXPECT_EQ(got[0].dq, got[i].dq);
    for (int c = 0; c < kBranches; ++c) {
      EXPECT_EQ(got[0].dk[c], got[i].dk[c]);
      EXPECT_EQ(got[0].dv[c], got[i].dv[c]);
    }
    EXPECT_EQ(got[0].gate.fc1_w, got[i].gate.fc1_w);
    EXPECT_EQ(got[0].gate.fc2_w, got[i].gate.fc2_w);
    EXPECT_EQ(got[0].phi_k.w1, got[i].phi_k.w1);
    EXPECT_EQ(got[0].phi_v.pe, got[i].phi_v.pe);
    EXPECT_EQ(got[0].phi_v.w2, got[i].phi_v.w2);
  }
}

// q·k depends only on the distance of two tokens, so the same tokens at later positions give the
// same o. The tokens before them are another document; documents begin where blocks begin.
TEST(Attention, OutputDoesNotDependOnThePositionOfTheDocument) {
  NsaShape shifted{1, 96, 4, 2, 16, 16, 8, 4, 8, 4, 16}, alone = shifted;
  constexpr int32_t kShift = 48;
  alone.seq_len = shifted.seq_len - kShift;
  Layer right = RandomLayer(ConfigOf(shifted), 19);
  right.doc_start = Documents(shifted, {kShift});
  Layer left = right;
  left.config.shape = alone;
  left.doc_start = std::vector<int32_t>();
  const auto tail = [&](std::vector<float>* x, int64_t row) {
    x->erase(x->begin(), x->begin() + kShift * row);
  };
  tail(&left.q, shifted.n_heads * shifted.d_k);
  for (int c = 0; c < kBranches; ++c) {
    tail(&left.k[c], shifted.n_kv_groups * shifted.d_k);
    tail(&left.v[c], shifted.n_kv_groups * shifted.d_v);
  }
  const ForwardOut far = Forward(right), near = Forward(left);
  // Rotations by other angles round differently, which adds one unit to each factor of the scores.
  EXPECT_TRUE(Close("o", std::span(far.o).subspan(kShift * shifted.n_heads * shifted.d_v), near.o,
                    QueryDims(alone, alone.d_v), 2 * LayerBound(alone)));
}

TEST(Attention, KernelsAnnounceThemselves) {
  const Layer layer = RandomLayer(ConfigOf(TinyShape()), 20);
  std::vector<std::string> names;
  const Exec exec{.on_kernel =
                      [](void* context, const char* name) {
                        static_cast<std::vector<std::string>*>(context)->push_back(name);
                      },
                  .on_kernel_context = &names};
  ForwardOut out = Forward(layer);
  NsaLayerArgs args{.config = layer.config,
                    .params = layer.params(),
                    .q = Span(layer.q),
                    .saved = Bytes(out.saved_memory, NsaLayerSavedBytes(layer.config)),
                    .workspace = Bytes(out.workspace, NsaLayerWorkspaceBytes(layer.config)),
                    .o = Span(out.o)};
  for (int c = 0; c < kBranches; ++c) {
    args.k[c] = Span(layer.k[c]);
    args.v[c] = Span(layer.v[c]);
  }
  ASSERT_TRUE(NsaLayer(exec, args).ok());
  EXPECT_THAT(names, ::testing::ElementsAre("rope", "rope", "rope", "rope", "window_attention",
                                            "compress", "compressed_attention", "select_blocks",
                                            "selected_attention", "gate"));
}

}  // namespace
}  // namespace nsa::testing
