// Documents in the same row of tokens do not see each other.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

NsaShape Shape() { return {2, 72, 4, 2, 16, 16, 8, 4, 8, 3, 16}; }

// Documents that start on and off the grids of d, l' and l; one of them is a single token.
std::vector<int32_t> UnalignedDocuments(const NsaShape& s) { return Documents(s, {5, 6, 32, 43}); }

TEST(Documents, LayerEqualsBruteForceForwardAndKeyGradients) {
  for (const Phi phi : {Phi::kAvg, Phi::kMlp}) {
    Layer layer = RandomLayer({.shape = Shape(), .phi = phi}, 1);
    const NsaShape& s = layer.config.shape;
    layer.doc_start = UnalignedDocuments(s);
    const ForwardOut got = Forward(layer);
    const oracle::LayerResult want = oracle::Forward(ToOracle(layer));
    EXPECT_EQ(Ints(got.blocks()), want.blocks);
    EXPECT_TRUE(Close("o", got.o, want.o, QueryDims(s, s.d_v), 3 * OutputBound(s)));
    EXPECT_EQ(got.keys_read, KeysExpected(layer.config, layer.doc_start));
  }
}

TEST(Documents, GradientsEqualCentralDifferences) {
  NsaShape s = TinyShape();
  Layer layer = RandomLayer({.shape = s}, 2);
  layer.doc_start = Documents(s, {3});
  ForwardOut forward = Forward(layer);
  const std::vector<float> d_o = Random(s.o_size(), 3);
  const BackwardOut got = Backward(layer, forward, d_o);
  oracle::Layer exact = ToOracle(layer);
  const std::vector<int32_t> blocks = Ints(forward.blocks());
  const auto loss = [&] { return oracle::Dot(oracle::Forward(exact, &blocks).o, Double(d_o)); };
  const double bound = 3 * GradientBound(s);
  for (int c = 0; c < kBranches; ++c) {
    EXPECT_TRUE(Close("dk", got.dk[c], oracle::NumericGradient(&exact.k[c], loss),
                      KeyDims(s, s.seq_len, s.d_k), bound));
    EXPECT_TRUE(Close("dv", got.dv[c], oracle::NumericGradient(&exact.v[c], loss),
                      KeyDims(s, s.seq_len, s.d_v), bound));
  }
}

// Replacing every token of the other documents does not change a bit of this one.
TEST(Documents, OtherDocumentsDoNotMoveABit) {
  Layer layer = RandomLayer({.shape = Shape(), .phi = Phi::kMlp}, 4);
  const NsaShape& s = layer.config.shape;
  layer.doc_start = UnalignedDocuments(s);
  const ForwardOut before = Forward(layer);
  constexpr int32_t kFrom = 6, kTo = 32;  // the document that stays
  const auto replace = [&](std::vector<float>* x, int64_t token_size) {
    for (int64_t i = 0; i < static_cast<int64_t>(x->size()); ++i) {
      const int64_t t = i / token_size % s.seq_len;
      if (t < kFrom || t >= kTo) (*x)[i] = std::numeric_limits<float>::quiet_NaN();
    }
  };
  replace(&layer.q, s.n_heads * s.d_k);
  for (int c = 0; c < kBranches; ++c) {
    replace(&layer.k[c], s.n_kv_groups * s.d_k);
    replace(&layer.v[c], s.n_kv_groups * s.d_v);
  }
  const ForwardOut after = Forward(layer);
  for (int64_t b = 0; b < s.batch; ++b) {
    const auto of_document = [&](auto all, int64_t token_size) {
      return all.subspan((b * s.seq_len + kFrom) * token_size, (kTo - kFrom) * token_size);
    };
    const int64_t o = s.n_heads * s.d_v, ids = s.n_kv_groups * s.n_sel;
    EXPECT_TRUE(SameBits("o", of_document(std::span(before.o), o),
                         of_document(std::span(after.o), o), {{"t", kTo - kFrom}, {"c", o}}));
    EXPECT_TRUE(SameBits("blocks", of_document(before.blocks(), ids),
                         of_document(after.blocks(), ids), {{"t", kTo - kFrom}, {"slot", ids}}));
  }
}

// Documents that begin where blocks begin give the same results as separate rows, up to the
// rounding of rotations at other positions.
TEST(Documents, EqualDocumentsRunApart) {
  Layer together = RandomLayer({.shape = Shape()}, 5);
  const NsaShape s = together.config.shape;
  together.doc_start = Documents(s, {24, 40});
  const ForwardOut all = Forward(together);
  for (const auto& [from, to] : {std::pair{0, 24}, std::pair{24, 40}, std::pair{40, 72}}) {
    Layer apart = together;
    apart.doc_start = std::vector<int32_t>();
    apart.config.shape.seq_len = to - from;
    const auto cut = [&](const std::vector<float>& x, int64_t token_size) {
      std::vector<float> out;
      for (int64_t b = 0; b < s.batch; ++b) {
        const auto row = x.begin() + b * s.seq_len * token_size;
        out.insert(out.end(), row + from * token_size, row + to * token_size);
      }
      return out;
    };
    apart.q = cut(together.q, s.n_heads * s.d_k);
    for (int c = 0; c < kBranches; ++c) {
      apart.k[c] = cut(together.k[c], s.n_kv_groups * s.d_k);
      apart.v[c] = cut(together.v[c], s.n_kv_groups * s.d_v);
    }
    const ForwardOut alone = Forward(apart);
    EXPECT_TRUE(Close("o", cut(all.o, s.n_heads * s.d_v), alone.o,
                      QueryDims(apart.config.shape, s.d_v), 6 * OutputBound(s)));
  }
}

TEST(Documents, AStartAfterItsTokenIsRefused) {
  Layer layer = RandomLayer({.shape = TinyShape()}, 6);
  layer.doc_start = Documents(layer.config.shape, {});
  layer.doc_start[4] = 5;
  EXPECT_THAT(std::string(CheckDocStart({}, layer.config.shape, Span(layer.doc_start)).message()),
              ::testing::StartsWith("doc_start[b=0,t=4]: 5"));
}

}  // namespace
}  // namespace nsa::testing
