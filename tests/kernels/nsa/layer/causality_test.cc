// Future tokens do not affect earlier outputs or earlier choices: not through a window that reads
// beyond its range, not through a block that contains t, not through a normalising sum.
#include "gtest/gtest.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

constexpr int32_t kBlock = 8, kStride = 4, kSelBlock = 12, kWindow = 16;

NsaShape ShapeOf(int32_t seq_len) {
  return {1, seq_len, 4, 2, 16, 16, kBlock, kStride, kSelBlock, 3, kWindow};
}

// Replaces every input of the tokens ≥ p by `value`.
void SetFuture(Layer* layer, int32_t p, float value) {
  const NsaShape& s = layer->config.shape;
  const auto set = [&](std::vector<float>* x, int64_t token_size) {
    for (int64_t b = 0; b < s.batch; ++b) {
      const auto row = x->begin() + b * s.seq_len * token_size;
      std::fill(row + p * token_size, row + s.seq_len * token_size, value);
    }
  };
  set(&layer->q, int64_t{1} * s.n_heads * s.d_k);
  for (int c = 0; c < kBranches; ++c) {
    set(&layer->k[c], int64_t{1} * s.n_kv_groups * s.d_k);
    set(&layer->v[c], int64_t{1} * s.n_kv_groups * s.d_v);
  }
}

void ExpectPastUnchanged(const Layer& layer, int32_t p, float future) {
  const NsaShape& s = layer.config.shape;
  Layer changed = layer;
  SetFuture(&changed, p, future);
  const ForwardOut before = Forward(layer), after = Forward(changed);
  const int64_t o = int64_t{1} * p * s.n_heads * s.d_v;
  const int64_t ids = int64_t{1} * p * s.n_kv_groups * s.n_sel;
  EXPECT_TRUE(SameBits("o", std::span(before.o).first(o), std::span(after.o).first(o),
                       {{"t", p}, {"a", s.n_heads}, {"c", s.d_v}}));
  EXPECT_TRUE(SameBits("blocks", before.blocks().first(ids), after.blocks().first(ids),
                       {{"t", p}, {"g", s.n_kv_groups}, {"slot", s.n_sel}}));
}

class FutureTokens : public ::testing::TestWithParam<int32_t> {};

// Positions at and next to w, 2w, l and l'.
INSTANTIATE_TEST_SUITE_P(Causality, FutureTokens,
                         ::testing::Values(kBlock - 1, kBlock, kBlock + 1, kSelBlock - 1, kSelBlock,
                                           kSelBlock + 1, kWindow - 1, kWindow, kWindow + 1,
                                           2 * kWindow - 1, 2 * kWindow, 2 * kWindow + 1, 61, 72));

// Random values, which would change any sum, and NaN, which would survive a multiplication by 0.
TEST_P(FutureTokens, LeaveEarlierOutputsAndBlocksBitEqual) {
  for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
    const Layer layer =
        RandomLayer({.shape = ShapeOf(GetParam()), .phi = phi}, static_cast<uint32_t>(GetParam()));
    for (int32_t p = 1; p < GetParam(); ++p) {
      SCOPED_TRACE(p);
      ExpectPastUnchanged(layer, p, 3.5f);
      ExpectPastUnchanged(layer, p, std::numeric_limits<float>::quiet_NaN());
    }
  }
}

TEST_P(FutureTokens, ReceiveNoGradientFromEarlierOutputs) {
  const NsaShape s = ShapeOf(GetParam());
  const Layer layer = RandomLayer({.shape = s, .phi = Phi::kMlp}, 3);
  ForwardOut forward = Forward(layer);
  for (int32_t p = 1; p < s.seq_len; p += 3) {
    std::vector<float> d_o = Random(s.o_size(), 4);
    std::fill(d_o.begin() + p * s.n_heads * s.d_v, d_o.end(), 0.0f);
    const BackwardOut got = Backward(layer, forward, d_o);
    const auto expect_zero = [&](const std::vector<float>& x, int64_t token_size) {
      for (size_t i = p * token_size; i < x.size(); ++i) {
        ASSERT_EQ(x[i], 0) << "p=" << p << " token " << i / token_size;
      }
    };
    expect_zero(got.dq, s.n_heads * s.d_k);
    for (int c = 0; c < kBranches; ++c) {
      expect_zero(got.dk[c], s.n_kv_groups * s.d_k);
      expect_zero(got.dv[c], s.n_kv_groups * s.d_v);
    }
  }
}

}  // namespace
}  // namespace nsa::testing
