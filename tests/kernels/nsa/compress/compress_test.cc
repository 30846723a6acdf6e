#include "kernels/nsa/compress/compress.h"

#include "gtest/gtest.h"
#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

struct Compressed {
  std::vector<float> y, hidden;
};

Compressed RunForward(const NsaShape& s, int32_t width, Phi phi, const std::vector<float>& x,
                      const PhiValues& params) {
  const int64_t rows = int64_t{1} * s.batch * s.cmp_blocks() * s.n_kv_groups;
  Compressed out{Poisoned(rows * width), Poisoned(phi == Phi::kMlp ? rows * PhiHidden(width) : 0)};
  EXPECT_OK(Compress({}, {.shape = s,
                          .width = width,
                          .phi = phi,
                          .x = Span(x),
                          .params = ParamsOf(params),
                          .hidden = Span(out.hidden),
                          .y = Span(out.y)}));
  return out;
}

Dims BlockDims(const NsaShape& s, int64_t width) {
  return {{"b", s.batch}, {"i", s.cmp_blocks()}, {"g", s.n_kv_groups}, {"c", width}};
}

// Error of a mean of l numbers ≤ 1, or of two layers with l·width products (weights ~ 2/√(l·width))
// and m products. Random walks of roundings with λ = 4 give 4u·(√l·…), well below
// 4u·(8 + √(l·width)/2).
double Bound(const NsaShape& s, int64_t width) {
  return kLambda * kUnit * (8 + std::sqrt(static_cast<double>(s.l * width)) / 2);
}

class EveryCompressShape : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Compress, EveryCompressShape, ::testing::ValuesIn(SmallCases()));

TEST_P(EveryCompressShape, ForwardEqualsTheFormula) {
  const NsaShape& s = GetParam().shape;
  for (const int32_t width : {s.d_k, s.d_v}) {
    const std::vector<float> x =
        Random(int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * width, 1);
    for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
      const PhiValues params = phi == Phi::kMlp ? RandomPhi(s, width, 2) : PhiValues{};
      const Compressed got = RunForward(s, width, phi, x, params);
      EXPECT_TRUE(Close("y", got.y, oracle::Compress(s, width, ToOracle(params), Double(x)),
                        BlockDims(s, width), Bound(s, width)));
    }
  }
}

// Gradients of the input and the parameters along random directions, after two backward calls:
// gradients of parameters accumulate, the gradient of x does not.
TEST_P(EveryCompressShape, GradientsEqualDirectionalDifferencesAndParametersAccumulate) {
  const NsaShape& s = GetParam().shape;
  const int32_t width = s.d_k;
  for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
    const std::vector<float> x = Random(s.k_size(), 3);
    const PhiValues params = phi == Phi::kMlp ? RandomPhi(s, width, 4) : PhiValues{};
    const Compressed forward = RunForward(s, width, phi, x, params);
    const std::vector<float> dy = Random(static_cast<int64_t>(forward.y.size()), 5);
    std::vector<float> dx = Poisoned(s.k_size()), d_hidden(forward.hidden.size());
    PhiValues grads = params;
    for (auto* g : {&grads.pe, &grads.w1, &grads.b1, &grads.w2, &grads.b2}) {
      std::fill(g->begin(), g->end(), 0.0f);
    }
    for (int call = 0; call < 2; ++call) {
      ASSERT_OK(CompressBackward({}, {.shape = s,
                                      .width = width,
                                      .phi = phi,
                                      .x = Span(x),
                                      .params = ParamsOf(params),
                                      .hidden = Span(forward.hidden),
                                      .dy = Span(dy),
                                      .d_hidden = Span(d_hidden),
                                      .dx = Span(dx),
                                      .grads = GradsOf(grads)}));
    }
    oracle::Array at = Double(x);
    oracle::Phi phi_at = ToOracle(params);
    const auto check = [&](const char* name, const std::vector<float>& gradient,
                           oracle::Array* value, double times) {
      const oracle::Array direction = Double(Random(static_cast<int64_t>(value->size()), 6));
      const auto loss = [&](double step) {
        const oracle::Array before = *value;
        for (size_t i = 0; i < value->size(); ++i) (*value)[i] += step * direction[i];
        const double result = oracle::Dot(oracle::Compress(s, width, phi_at, at), Double(dy));
        *value = before;
        return result;
      };
      const double want = times * (loss(1e-5) - loss(-1e-5)) / 2e-5;
      const double terms = static_cast<double>(value->size() * forward.y.size()) + 1;
      EXPECT_NEAR(oracle::Dot(Double(gradient), direction), want,
                  times * Bound(s, width) * std::sqrt(terms) + 1e-8)
          << name;
    };
    check("dx", dx, &at, 1);
    if (phi == Phi::kAvg) continue;
    check("pe", grads.pe, &phi_at.pe, 2);
    check("w1", grads.w1, &phi_at.w1, 2);
    check("b1", grads.b1, &phi_at.b1, 2);
    check("w2", grads.w2, &phi_at.w2, 2);
    check("b2", grads.b2, &phi_at.b2, 2);
  }
}

TEST(Compress, PositionsWithinTheBlockMatterToTheMlpOnly) {
  const NsaShape s{1, 8, 1, 1, 16, 16, 8, 8, 8, 3, 8};
  const std::vector<float> x = Random(s.k_size(), 7);
  std::vector<float> reversed(x.size());
  for (int64_t i = 0; i < s.k_size(); ++i) reversed[i] = x[(7 - i / 16) * 16 + i % 16];
  const PhiValues mlp = RandomPhi(s, 16, 8);
  EXPECT_TRUE(Close("y", RunForward(s, 16, Phi::kAvg, x, {}).y,
                    RunForward(s, 16, Phi::kAvg, reversed, {}).y, BlockDims(s, 16), Bound(s, 16)));
  EXPECT_FALSE(Close("y", RunForward(s, 16, Phi::kMlp, x, mlp).y,
                     RunForward(s, 16, Phi::kMlp, reversed, mlp).y, BlockDims(s, 16), 0.01));
}

TEST(Compress, ParametersAreCounted) {
  const PhiSizes sizes = PhiSizesOf(32, 64);
  EXPECT_EQ(sizes.total(), 32 * 64 + 64 * 32 * 64 + 64 + 64 * 64 + 64);
}

}  // namespace
}  // namespace nsa::testing
