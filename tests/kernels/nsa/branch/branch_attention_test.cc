// The three branches alone: compressed, selected and window attention, forward and backward.
#include "common/nsa/visibility.h"
#include "gtest/gtest.h"
#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/branch/selected_attention.h"
#include "kernels/nsa/branch/window_attention.h"
#include "kernels/nsa/select/select_blocks.h"
#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

// Inputs of one branch and the oracle's results for them. q is large, so that softmax is not flat.
struct BranchCase {
  BranchCase(const NsaShape& shape, Branch which, uint32_t seed)
      : s(shape),
        branch(which),
        keys(which == kCmp ? shape.cmp_blocks() : shape.seq_len),
        q(Random(shape.q_size(), seed, 3)),
        k(Random(shape.batch * keys * shape.n_kv_groups * shape.d_k, seed + 1)),
        v(Random(shape.batch * keys * shape.n_kv_groups * shape.d_v, seed + 2)),
        d_o(Random(shape.o_size(), seed + 3)) {
    const oracle::Array scores =
        Double(Random(int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * s.sel_blocks(), seed));
    blocks = oracle::Choose(s, scores, oracle::DocOf(s, {}));
  }

  oracle::Visible visible() const {
    const oracle::Doc doc = oracle::DocOf(s, {});
    if (branch == kCmp) return oracle::SeesCompressed(s, doc);
    if (branch == kSel) return oracle::SeesSelected(s, doc, blocks);
    return oracle::SeesWindow(s, doc);
  }
  oracle::Array Want() const {
    return oracle::Attend(s, keys, Double(q), Double(k), Double(v), visible());
  }

  NsaShape s;
  Branch branch;
  int64_t keys;
  std::vector<float> q, k, v, d_o;
  std::vector<int32_t> blocks;
};

struct Out {
  std::vector<float> o, lse, dq, dk, dv;
  int64_t keys_read = -1;
};

template <class Args>
Args Common(const BranchCase& c, Out* out) {
  Args args;
  args.shape = c.s;
  args.q = Span(c.q);
  args.k = Span(c.k);
  args.v = Span(c.v);
  args.o = Span(out->o);
  args.lse = Span(out->lse);
  return args;
}

template <class Args>
Args CommonForward(const BranchCase& c, Out* out) {
  Args args = Common<Args>(c, out);
  args.keys_read = std::span<int64_t>(&out->keys_read, 1);
  return args;
}
template <class Args>
Args CommonBackward(const BranchCase& c, Out* out, bool add_to_dq) {
  Args args = Common<Args>(c, out);
  args.d_o = Span(c.d_o);
  args.dq = Span(out->dq);
  args.dk = Span(out->dk);
  args.dv = Span(out->dv);
  args.add_to_dq = add_to_dq;
  return args;
}

absl::Status RunForward(const BranchCase& c, Out* out) {
  out->o = Poisoned(c.s.o_size());
  out->lse = Poisoned(c.s.o_size() / c.s.d_v);
  if (c.branch == kCmp) {
    return CompressedAttention({}, CommonForward<BranchArgs>(c, out));
  }
  if (c.branch == kWin) return WindowAttention({}, CommonForward<BranchArgs>(c, out));
  auto args = CommonForward<BranchArgs>(c, out);
  args.blocks = Span(c.blocks);
  return SelectedAttention({}, args);
}

absl::Status RunBackward(const BranchCase& c, Out* out, bool add_to_dq = false) {
  if (!add_to_dq) out->dq = Poisoned(c.s.q_size());
  out->dk = Poisoned(static_cast<int64_t>(c.k.size()));
  out->dv = Poisoned(static_cast<int64_t>(c.v.size()));
  if (c.branch == kCmp) {
    return CompressedAttentionBackward({}, CommonBackward<BranchBackwardArgs>(c, out, add_to_dq));
  }
  if (c.branch == kWin) {
    return WindowAttentionBackward({}, CommonBackward<BranchBackwardArgs>(c, out, add_to_dq));
  }
  auto args = CommonBackward<BranchBackwardArgs>(c, out, add_to_dq);
  args.blocks = Span(c.blocks);
  return SelectedAttentionBackward({}, args);
}

int64_t Expected(const BranchCase& c) { return KeysRead(c.s, c.branch); }

class Branches : public ::testing::TestWithParam<std::tuple<Branch, Case>> {
 protected:
  BranchCase Make(uint32_t seed) const {
    return BranchCase(std::get<1>(GetParam()).shape, std::get<0>(GetParam()), seed);
  }
};
INSTANTIATE_TEST_SUITE_P(EveryShape, Branches,
                         ::testing::Combine(::testing::Values(kCmp, kSel, kWin),
                                            ::testing::ValuesIn(SmallCases())));

// The bound is larger because scores are three times larger than OutputBound assumes.
TEST_P(Branches, ForwardEqualsBruteForce) {
  const BranchCase c = Make(1);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  EXPECT_TRUE(Close("o", out.o, c.Want(), QueryDims(c.s, c.s.d_v), 3 * OutputBound(c.s)));
}

// lse = log Σ exp(score). The bound is the rounding of a score and of a logarithm of at most 17.
TEST_P(Branches, LseIsTheLogarithmOfTheSoftmaxDenominator) {
  const BranchCase c = Make(13);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  const oracle::Visible visible = c.visible();
  for (size_t row = 0; row < out.lse.size(); ++row) {
    const int64_t a = static_cast<int64_t>(row) % c.s.n_heads;
    const int64_t t = static_cast<int64_t>(row) / c.s.n_heads % c.s.seq_len;
    const int64_t b = static_cast<int64_t>(row) / c.s.n_heads / c.s.seq_len;
    const int64_t g = a / c.s.heads_per_group();
    double sum = 0;
    for (int64_t j = 0; j < c.keys; ++j) {
      if (!visible(b, g, t, j)) continue;
      double score = 0;
      for (int64_t i = 0; i < c.s.d_k; ++i) {
        score += static_cast<double>(c.q[row * c.s.d_k + i]) *
                 c.k[((b * c.keys + j) * c.s.n_kv_groups + g) * c.s.d_k + i];
      }
      sum += std::exp(score / std::sqrt(c.s.d_k));
    }
    if (sum == 0) {
      EXPECT_EQ(out.lse[row], std::numeric_limits<float>::infinity());
    } else {
      ASSERT_NEAR(out.lse[row], std::log(sum), 3 * OutputBound(c.s)) << "t=" << t << " a=" << a;
    }
  }
}

TEST_P(Branches, ReadTheKeysOfTheFormulaAndOfTheOracle) {
  const BranchCase c = Make(2);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  int64_t seen = 0;
  const oracle::Visible visible = c.visible();
  for (int64_t b = 0; b < c.s.batch; ++b) {
    for (int64_t g = 0; g < c.s.n_kv_groups; ++g) {
      for (int64_t t = 0; t < c.s.seq_len; ++t) {
        for (int64_t j = 0; j < c.keys; ++j) seen += visible(b, g, t, j);
      }
    }
  }
  EXPECT_EQ(out.keys_read, seen);
  EXPECT_EQ(Expected(c), seen);
}

TEST_P(Branches, BackwardOverwritesAllAndAddsToDqOnRequest) {
  const BranchCase c = Make(3);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  ASSERT_OK(RunBackward(c, &out));
  const std::vector<float> once = out.dq;
  for (const auto& values : {out.dq, out.dk, out.dv}) {
    for (float x : values) ASSERT_TRUE(std::isfinite(x));
  }
  ASSERT_OK(RunBackward(c, &out, /*add_to_dq=*/true));
  std::vector<double> twice = Double(once);
  for (double& x : twice) x *= 2;
  EXPECT_TRUE(Close("dq", out.dq, twice, QueryDims(c.s, c.s.d_k), GradientBound(c.s)));
}

class Gradients : public ::testing::TestWithParam<Branch> {};
INSTANTIATE_TEST_SUITE_P(EveryBranch, Gradients, ::testing::Values(kCmp, kSel, kWin));

TEST_P(Gradients, EqualCentralDifferencesElementByElement) {
  const NsaShape s = {1, 13, 4, 2, 16, 16, 4, 2, 2, 3, 5};
  const BranchCase c(s, GetParam(), 4);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  ASSERT_OK(RunBackward(c, &out));
  oracle::Array q = Double(c.q), k = Double(c.k), v = Double(c.v);
  const oracle::Visible visible = c.visible();
  const auto loss = [&] {
    return oracle::Dot(oracle::Attend(s, c.keys, q, k, v, visible), Double(c.d_o));
  };
  const double bound = 3 * GradientBound(s);
  EXPECT_TRUE(Close("dq", out.dq, oracle::NumericGradient(&q, loss), QueryDims(s, s.d_k), bound));
  EXPECT_TRUE(
      Close("dk", out.dk, oracle::NumericGradient(&k, loss), KeyDims(s, c.keys, s.d_k), bound));
  EXPECT_TRUE(
      Close("dv", out.dv, oracle::NumericGradient(&v, loss), KeyDims(s, c.keys, s.d_v), bound));
}

// Random directions instead of single elements, for the shapes that have too many elements.
TEST_P(Branches, GradientsEqualDirectionalDifferences) {
  const BranchCase c = Make(5);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  ASSERT_OK(RunBackward(c, &out));
  oracle::Array q = Double(c.q), k = Double(c.k), v = Double(c.v);
  const oracle::Array d_q = Double(Random(c.s.q_size(), 60));
  const oracle::Array d_k = Double(Random(static_cast<int64_t>(k.size()), 61));
  const oracle::Array d_v = Double(Random(static_cast<int64_t>(v.size()), 62));
  const auto loss_at = [&](double step) {
    const auto moved = [step](const oracle::Array& x, const oracle::Array& direction) {
      oracle::Array y = x;
      for (size_t i = 0; i < y.size(); ++i) y[i] += step * direction[i];
      return y;
    };
    return oracle::Dot(
        oracle::Attend(c.s, c.keys, moved(q, d_q), moved(k, d_k), moved(v, d_v), c.visible()),
        Double(c.d_o));
  };
  const double want = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
  const double got = oracle::Dot(Double(out.dq), d_q) + oracle::Dot(Double(out.dk), d_k) +
                     oracle::Dot(Double(out.dv), d_v);
  // A random walk over all elements, each with an error of at most the bound.
  const double elements = static_cast<double>(q.size() + k.size() + v.size());
  EXPECT_NEAR(got, want, GradientBound(c.s) * std::sqrt(elements) + 1e-8);
}

TEST(CompressedAttention, AQueryThatSeesNoBlockGivesZeroAndTakesNoGradient) {
  const NsaShape s = SmallCases()[0].shape;
  const BranchCase c(s, kCmp, 6);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  ASSERT_OK(RunBackward(c, &out));
  for (int64_t t = 0; t < s.l - 1; ++t) {
    for (int64_t i = 0; i < s.n_heads * s.d_v; ++i) EXPECT_EQ(out.o[t * s.n_heads * s.d_v + i], 0);
    for (int64_t i = 0; i < s.n_heads * s.d_k; ++i) EXPECT_EQ(out.dq[t * s.n_heads * s.d_k + i], 0);
    for (int64_t a = 0; a < s.n_heads; ++a) {
      EXPECT_EQ(out.lse[t * s.n_heads + a], std::numeric_limits<float>::infinity());
    }
  }
}

TEST(SelectedAttention, EmptySlotsAndRowsWithoutABlockGiveZero) {
  const NsaShape s = SmallCases()[0].shape;
  BranchCase c(s, kSel, 7);
  std::fill(c.blocks.begin(), c.blocks.end(), -1);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  ASSERT_OK(RunBackward(c, &out));
  for (const auto& values : {out.o, out.dq, out.dk, out.dv}) {
    for (float x : values) ASSERT_EQ(x, 0);
  }
  EXPECT_EQ(out.keys_read, 0);
}

TEST(SelectedAttention, EqualsDenseAttentionWhenEveryBlockIsSelected) {
  NsaShape s = SmallCases()[1].shape;
  s.n_sel = s.sel_blocks();
  const BranchCase c(s, kSel, 8);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  EXPECT_TRUE(Close(
      "o", out.o,
      oracle::Attend(s, s.seq_len, Double(c.q), Double(c.k), Double(c.v), oracle::SeesAllPast()),
      QueryDims(s, s.d_v), 3 * OutputBound(s)));
}

TEST(WindowAttention, EqualsDenseAttentionWhenTheWindowHoldsEverything) {
  NsaShape s = SmallCases()[1].shape;
  s.window = s.seq_len;
  const BranchCase c(s, kWin, 9);
  Out out;
  ASSERT_OK(RunForward(c, &out));
  EXPECT_TRUE(Close(
      "o", out.o,
      oracle::Attend(s, s.seq_len, Double(c.q), Double(c.k), Double(c.v), oracle::SeesAllPast()),
      QueryDims(s, s.d_v), 3 * OutputBound(s)));
}

TEST(SelectedAttention, StatisticsCountRowsAtTheMaximum) {
  const NsaShape s = SmallCases()[0].shape;
  const BranchCase c(s, kSel, 10);
  Out out;
  out.o = Poisoned(s.o_size());
  out.lse = Poisoned(s.o_size() / s.d_v);
  auto args = CommonForward<BranchArgs>(c, &out);
  args.blocks = Span(c.blocks);
  std::array<int64_t, kSelectionStats> stats = {};
  args.selection_stats = std::span<int64_t>(stats);
  ASSERT_OK(SelectedAttention({}, args));
  // A row reads n·l' keys when its current block c is complete: at t+1 = 4·8, 5·8, … 8·8.
  const SelectionStats want{
      .keys_sum = KeysRead(s, kSel), .keys_max = 32, .rows = 2 * 64 * 2, .at_max = 2 * 5 * 2};
  EXPECT_EQ(stats, (std::array<int64_t, 4>{want.keys_sum, want.keys_max, want.rows, want.at_max}));
  const SelectionStats more =
      Combine(want, {.keys_sum = 40, .keys_max = 40, .rows = 1, .at_max = 1});
  EXPECT_EQ(more.keys_max, 40);
  EXPECT_EQ(more.at_max, 1);
  EXPECT_EQ(more.rows, 257);
}

// Scores of ±10^4: exp would overflow unless the maximum is subtracted, and most weights underflow.
TEST_P(Gradients, StayFiniteWithHugeScores) {
  BranchCase c(SmallCases()[0].shape, GetParam(), 11);
  for (float& x : c.q) x *= 5000;
  Out out;
  ASSERT_OK(RunForward(c, &out));
  ASSERT_OK(RunBackward(c, &out));
  for (const auto& values : {out.o, out.dq, out.dk, out.dv}) {
    for (float x : values) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(Gradients, ANaNKeyIsNotHiddenFromTheQueriesThatSeeIt) {
  BranchCase c(SmallCases()[0].shape, GetParam(), 12);
  c.k[0] = std::numeric_limits<float>::quiet_NaN();  // key 0 of group 0
  Out out;
  ASSERT_OK(RunForward(c, &out));
  const int64_t t = c.s.l;  // sees block 0, is in the window of token 0
  EXPECT_TRUE(std::isnan(out.o[t * c.s.n_heads * c.s.d_v]));
}

}  // namespace
}  // namespace nsa::testing
