#include "kernels/nsa/select/select_blocks.h"

#include <set>

#include "gtest/gtest.h"
#include "kernels/nsa/branch/compressed_attention.h"
#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

int64_t ScoresSize(const NsaShape& s) {
  return int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * s.sel_blocks();
}

std::vector<int32_t> Chosen(const NsaShape& s, const std::vector<float>& scores,
                            const std::vector<int32_t>& doc_start = {}) {
  std::vector<int32_t> blocks(s.blocks_size(), -7);
  ConstTensor docs;
  if (!doc_start.empty()) docs = Span(doc_start);
  EXPECT_OK(ChooseBlocks(
      {}, {.shape = s, .scores = Span(scores), .doc_start = docs, .blocks = Span(blocks)}));
  return blocks;
}

class EverySelectShape : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(SelectBlocks, EverySelectShape, ::testing::ValuesIn(SmallCases()));

// Scores sum probabilities ≤ 1 over h heads; the relative error is as in OutputBound.
TEST_P(EverySelectShape, ScoresEqualTheFormulaWithAndWithoutLse) {
  const NsaShape& s = GetParam().shape;
  const std::vector<float> q = Random(s.q_size(), 1, 3), k = Random(s.cmp_k_size(), 2);
  const oracle::Array want = oracle::Scores(s, Double(q), Double(k), oracle::DocOf(s, {}));
  std::vector<float> scores = Poisoned(ScoresSize(s));
  std::vector<int32_t> blocks(s.blocks_size());
  SelectBlocksArgs args{
      .shape = s, .q = Span(q), .k = Span(k), .blocks = Span(blocks), .scores = Span(scores)};
  const Dims dims = {{"b", s.batch}, {"t", s.seq_len}, {"g", s.n_kv_groups}, {"j", s.sel_blocks()}};
  const double bound = 3 * s.heads_per_group() * OutputBound(s);
  ASSERT_OK(SelectBlocks({}, args));
  EXPECT_TRUE(Close("scores", scores, want, dims, bound));

  std::vector<float> o(s.o_size()), lse(s.o_size() / s.d_v);
  const std::vector<float> v = Random(s.cmp_v_size(), 3);
  ASSERT_OK(CompressedAttention(
      {}, {.shape = s, .q = Span(q), .k = Span(k), .v = Span(v), .o = Span(o), .lse = Span(lse)}));
  std::fill(scores.begin(), scores.end(), kPoison);
  args.lse = Span(lse);
  ASSERT_OK(SelectBlocks({}, args));
  EXPECT_TRUE(Close("scores with lse", scores, want, dims, bound));
}

// p sums to 1 per head and the mapping to blocks preserves the sum, so the scores of every row with
// a visible block sum to h.
TEST_P(EverySelectShape, ScoresOfARowSumToTheHeads) {
  const NsaShape& s = GetParam().shape;
  const std::vector<float> q = Random(s.q_size(), 4), k = Random(s.cmp_k_size(), 5);
  std::vector<float> scores = Poisoned(ScoresSize(s));
  std::vector<int32_t> blocks(s.blocks_size());
  ASSERT_OK(SelectBlocks(
      {},
      {.shape = s, .q = Span(q), .k = Span(k), .blocks = Span(blocks), .scores = Span(scores)}));
  for (int64_t row = 0; row < ScoresSize(s) / s.sel_blocks(); ++row) {
    const int64_t t = row / s.n_kv_groups % s.seq_len;
    double sum = 0;
    for (int64_t j = 0; j < s.sel_blocks(); ++j) sum += scores[row * s.sel_blocks() + j];
    EXPECT_NEAR(sum, t + 1 >= s.l ? s.heads_per_group() : 0, s.heads_per_group() * 1e-5);
  }
}

// Scores have few distinct values, so that there are many ties.
TEST_P(EverySelectShape, ChoiceFromGivenScoresEqualsTheRule) {
  const NsaShape& s = GetParam().shape;
  std::vector<float> scores = Random(ScoresSize(s), 6);
  for (float& x : scores) x = std::round(x * 2);
  EXPECT_EQ(Chosen(s, scores), oracle::Choose(s, scores, oracle::DocOf(s, {})));
}

TEST_P(EverySelectShape, RowsAreAscendingDistinctAndHoldTheForcedBlocks) {
  const NsaShape& s = GetParam().shape;
  const std::vector<int32_t> blocks = Chosen(s, Random(ScoresSize(s), 7));
  for (int64_t row = 0; row < s.blocks_size() / s.n_sel; ++row) {
    const int32_t t = static_cast<int32_t>(row / s.n_kv_groups % s.seq_len), c = t / s.l_sel;
    const std::vector<int32_t> ids(blocks.begin() + row * s.n_sel,
                                   blocks.begin() + (row + 1) * s.n_sel);
    const int32_t filled = std::min(s.n_sel, c + 1);
    const std::set<int32_t> distinct(ids.begin(), ids.begin() + filled);
    EXPECT_EQ(static_cast<int32_t>(distinct.size()), filled);
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.begin() + filled));
    EXPECT_EQ(std::count(ids.begin() + filled, ids.end(), -1), s.n_sel - filled);
    for (const int32_t forced : {0, std::max(0, c - 1), c}) EXPECT_TRUE(distinct.count(forced));
    EXPECT_LE(*distinct.rbegin(), c);
  }
}

NsaShape Long() { return {1, 80, 2, 1, 16, 16, 8, 4, 8, 5, 8}; }

TEST(SelectBlocks, LowestIdWinsATie) {
  const NsaShape s = Long();
  const std::vector<int32_t> blocks = Chosen(s, std::vector<float>(ScoresSize(s), 0.5f));
  const std::vector<int32_t> last(blocks.end() - s.n_sel, blocks.end());
  EXPECT_EQ(last, (std::vector<int32_t>{0, 1, 2, 8, 9}));
}

TEST(SelectBlocks, TheBestOtherBlocksFillTheFreeSlots) {
  const NsaShape s = Long();
  std::vector<float> scores(ScoresSize(s), 0);
  float* last = scores.data() + ScoresSize(s) - s.sel_blocks();
  last[4] = 0.3f;
  last[6] = 0.2f;
  last[2] = 0.1f;
  const std::vector<int32_t> blocks = Chosen(s, scores);
  EXPECT_EQ(std::vector<int32_t>(blocks.end() - s.n_sel, blocks.end()),
            (std::vector<int32_t>{0, 4, 6, 8, 9}));
}

TEST(SelectBlocks, NaNScoresAreChosenLastAndDoNoHarm) {
  const NsaShape s = Long();
  std::vector<float> scores(ScoresSize(s), std::numeric_limits<float>::quiet_NaN());
  float* last = scores.data() + ScoresSize(s) - s.sel_blocks();
  last[5] = last[6] = -1;
  const std::vector<int32_t> blocks = Chosen(s, scores);
  EXPECT_EQ(std::vector<int32_t>(blocks.end() - s.n_sel, blocks.end()),
            (std::vector<int32_t>{0, 5, 6, 8, 9}));
}

TEST(SelectBlocks, TheFirstBlockOfTheDocumentIsForcedInsteadOfBlockZero) {
  const NsaShape s = Long();
  std::vector<float> scores = Random(ScoresSize(s), 8);
  const std::vector<int32_t> doc_start = Documents(s, {13});  // in block 1
  const std::vector<int32_t> blocks = Chosen(s, scores, doc_start);
  EXPECT_EQ(blocks, oracle::Choose(s, scores, oracle::DocOf(s, doc_start)));
  EXPECT_EQ(*(blocks.end() - s.n_sel), 1);
}

// With identical heads the score is h times the score of one head.
TEST(SelectBlocks, ScoresAreTheSumOverTheGroupsHeads) {
  const NsaShape one{1, 60, 1, 1, 16, 16, 8, 4, 8, 3, 8};
  NsaShape four = one;
  four.n_heads = 4;
  const std::vector<float> q = Random(one.q_size(), 9), k = Random(one.cmp_k_size(), 10);
  std::vector<float> q4(four.q_size());
  for (int64_t i = 0; i < four.q_size(); ++i) q4[i] = q[i / 64 * 16 + i % 16];
  std::vector<float> scores(ScoresSize(one)), scores4(ScoresSize(four));
  std::vector<int32_t> blocks(one.blocks_size()), blocks4(four.blocks_size());
  ASSERT_OK(SelectBlocks(
      {},
      {.shape = one, .q = Span(q), .k = Span(k), .blocks = Span(blocks), .scores = Span(scores)}));
  ASSERT_OK(SelectBlocks({}, {.shape = four,
                              .q = Span(q4),
                              .k = Span(k),
                              .blocks = Span(blocks4),
                              .scores = Span(scores4)}));
  for (float& x : scores) x *= 4;
  // Four equal terms: the sum of p has one rounding (3p), then l/d weights are averaged.
  EXPECT_TRUE(Close("scores", scores4, scores, {{"t", 60}, {"j", one.sel_blocks()}}, 16 * 0x1p-24));
  EXPECT_EQ(blocks4, blocks);
}

}  // namespace
}  // namespace nsa::testing
