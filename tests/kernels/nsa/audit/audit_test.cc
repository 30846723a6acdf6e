#include "kernels/nsa/audit/audit.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/nsa/select/select_blocks.h"
#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

constexpr int64_t kStep = 1234;

// Inputs of an audit: random queries and keys, and blocks chosen from random scores.
struct Inputs {
  NsaShape s;
  std::vector<float> q, k;
  std::vector<int32_t> blocks, doc_start;

  explicit Inputs(const NsaShape& shape, std::vector<int32_t> documents = {})
      : s(shape),
        q(Random(s.q_size(), 1, 4)),
        k(Random(s.k_size(), 2)),
        blocks(s.blocks_size()),
        doc_start(std::move(documents)) {
    const int64_t rows = s.blocks_size() / s.n_sel;
    const std::vector<float> scores = Random(rows * s.sel_blocks(), 3);
    EXPECT_OK(ChooseBlocks(
        {},
        {.shape = s, .scores = Span(scores), .doc_start = Documents(), .blocks = Span(blocks)}));
  }
  ConstTensor Documents() const {
    return doc_start.empty() ? ConstTensor() : ConstTensor(Span(doc_start));
  }
};

std::vector<float> Audit(const Inputs& in, Branch branch, int32_t queries = kAuditedQueries) {
  std::vector<float> kept = Poisoned(int64_t{1} * queries * in.s.n_heads);
  EXPECT_OK(
      AuditAttention({}, {.shape = in.s,
                          .branch = branch,
                          .q = Span(in.q),
                          .k = Span(in.k),
                          .blocks = branch == kSel ? ConstTensor(Span(in.blocks)) : ConstTensor(),
                          .doc_start = in.Documents(),
                          .step = kStep,
                          .queries = queries,
                          .kept = Span(kept)}));
  return kept;
}

// The same in fp64 by asking of every key whether the query and the branch see it.
oracle::Array Expected(const Inputs& in, Branch branch) {
  const NsaShape& s = in.s;
  const oracle::Doc doc = oracle::DocOf(s, in.doc_start);
  const oracle::Visible past = [&](int64_t b, int64_t, int64_t t, int64_t j) {
    return j <= t && j >= doc(b, t);
  };
  const oracle::Visible read =
      branch == kWin ? oracle::SeesWindow(s, doc) : oracle::SeesSelected(s, doc, in.blocks);
  const oracle::Array q = Double(in.q), k = Double(in.k);
  oracle::Array kept;
  for (int32_t i = 0; i < kAuditedQueries; ++i) {
    const int32_t query = AuditedQuery(kStep, i, s.batch * s.seq_len);
    const int32_t b = query / s.seq_len, t = query % s.seq_len;
    for (int32_t a = 0; a < s.n_heads; ++a) {
      const oracle::Array p = oracle::Probabilities(s, s.seq_len, q, k, past, b, t, a);
      double sum = 0;
      for (int32_t j = 0; j < s.seq_len; ++j) {
        if (read(b, a / s.heads_per_group(), t, j)) sum += p[j];
      }
      kept.push_back(sum);
    }
  }
  return kept;
}

void ExpectTheFormula(const Inputs& in) {
  const Dims dims = {{"query", kAuditedQueries}, {"a", in.s.n_heads}};
  for (const Branch branch : {kSel, kWin}) {
    EXPECT_TRUE(Close("kept", Audit(in, branch), Expected(in, branch), dims, 4 * OutputBound(in.s)))
        << "branch " << branch;
  }
}

double Mean(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

class EveryAuditShape : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Audit, EveryAuditShape, ::testing::ValuesIn(SmallCases()), CaseName());

TEST_P(EveryAuditShape, KeptMassEqualsTheFormula) { ExpectTheFormula(Inputs(GetParam().shape)); }

TEST_P(EveryAuditShape, ASelectionOfEveryBlockKeepsEverything) {
  NsaShape s = GetParam().shape;
  s.n_sel = std::max(3, s.sel_blocks());
  for (const float kept : Audit(Inputs(s), kSel)) EXPECT_FLOAT_EQ(kept, 1);
}

TEST_P(EveryAuditShape, AWindowOfTheWholeSequenceKeepsEverything) {
  NsaShape s = GetParam().shape;
  s.window = s.seq_len;
  for (const float kept : Audit(Inputs(s), kWin)) EXPECT_FLOAT_EQ(kept, 1);
}

// {B, S, H, G, dk, dv, l, d, l', n, w}
NsaShape LongAudit() { return {1, 256, 4, 2, 16, 16, 8, 4, 8, 5, 8}; }

TEST(Audit, FewerBlocksAndAShorterWindowKeepLess) {
  NsaShape more = LongAudit(), fewer = more;
  more.n_sel = 16;
  more.window = 64;
  const Inputs many(more), few(fewer);
  EXPECT_LT(Mean(Audit(few, kSel)), 0.8 * Mean(Audit(many, kSel)));
  EXPECT_LT(Mean(Audit(few, kWin)), 0.5 * Mean(Audit(many, kWin)));
}

TEST(Audit, OnlyKeysOfTheQuerysDocumentCount) {
  const std::vector<int32_t> documents = Documents(LongAudit(), {5, 6, 32, 199});
  ExpectTheFormula(Inputs(LongAudit(), documents));
  // The keys and queries of the other documents may be anything.
  Inputs in(LongAudit(), documents);
  const std::vector<float> before = Audit(in, kSel);
  for (int64_t i = 32 * 2 * 16; i < 199 * 2 * 16; ++i) in.k[i] = kPoison;
  const std::vector<float> after = Audit(in, kSel);
  for (int32_t i = 0; i < kAuditedQueries; ++i) {
    const int32_t t = AuditedQuery(kStep, i, 256);
    if (t >= 32 && t < 199) continue;
    EXPECT_EQ(after[4 * i], before[4 * i]) << "query " << t;
  }
}

TEST(Audit, QueriesAreAFunctionOfTheStepAndSpreadOverTheBatch) {
  constexpr int32_t kQueries = 1 << 15;
  std::set<int32_t> first, second;
  int upper_half = 0;
  for (int32_t i = 0; i < kAuditedQueries; ++i) {
    const int32_t query = AuditedQuery(100, i, kQueries);
    ASSERT_GE(query, 0);
    ASSERT_LT(query, kQueries);
    EXPECT_EQ(query, AuditedQuery(100, i, kQueries));
    first.insert(query);
    second.insert(AuditedQuery(200, i, kQueries));
    upper_half += query >= kQueries / 2 ? 1 : 0;
  }
  EXPECT_GT(first.size(), 250u);
  EXPECT_NE(first, second);
  EXPECT_NEAR(upper_half, kAuditedQueries / 2, 40);
}

// The statistics of `in`, with every query sampled from the lists that AuditChoices() copies.
ChoiceStats Choices(const Inputs& in, bool has_window = true, int32_t queries = kAuditedQueries) {
  std::vector<int32_t> chosen(int64_t{1} * queries * ChoiceWidth(in.s), -7);
  EXPECT_OK(AuditChoices({}, {.shape = in.s,
                              .blocks = Span(in.blocks),
                              .doc_start = in.Documents(),
                              .step = kStep,
                              .queries = queries,
                              .chosen = Span(chosen)}));
  return SummariseChoices(in.s, kStep, has_window, chosen);
}

// Sets the blocks of every row that has more candidates than n: the three forced ones, and `free`
// of the row for the others. The rows without a choice stay.
void Choose(Inputs* in, const std::function<int32_t(int32_t t, int32_t i)>& free) {
  const NsaShape& s = in->s;
  for (int32_t row = 0; row < s.batch * s.seq_len * s.n_kv_groups; ++row) {
    const int32_t t = row / s.n_kv_groups % s.seq_len, current = t / s.l_sel;
    if (current + 1 <= s.n_sel) continue;
    std::set<int32_t> ids = {0, current - 1, current};
    for (int32_t i = 0; i < s.n_sel - 3; ++i) ids.insert(free(t, i));
    ASSERT_EQ(ids.size(), static_cast<size_t>(s.n_sel));
    std::copy(ids.begin(), ids.end(), in->blocks.begin() + int64_t{row} * s.n_sel);
  }
}

TEST_P(EveryAuditShape, CopiesTheListsOfTheQueriesAndOfTheTokensBeforeThem) {
  const Inputs in(GetParam().shape);
  const NsaShape& s = in.s;
  const int32_t lists = s.n_kv_groups * s.n_sel;
  std::vector<int32_t> chosen(int64_t{1} * kAuditedQueries * ChoiceWidth(s), -7);
  ASSERT_OK(AuditChoices({}, {.shape = s,
                              .blocks = Span(in.blocks),
                              .step = kStep,
                              .queries = kAuditedQueries,
                              .chosen = Span(chosen)}));
  for (int32_t i = 0; i < kAuditedQueries; ++i) {
    const int32_t query = AuditedQuery(kStep, i, s.batch * s.seq_len);
    const int32_t* const row = chosen.data() + int64_t{1} * i * ChoiceWidth(s);
    EXPECT_EQ(row[0], 0);
    for (int32_t j = 0; j < lists; ++j) {
      EXPECT_EQ(row[1 + j], in.blocks[int64_t{query} * lists + j]);
      const bool begins = query % s.seq_len == 0;
      EXPECT_EQ(row[1 + lists + j], begins ? -1 : in.blocks[int64_t{query - 1} * lists + j]);
    }
  }
}

TEST(Choices, OneBlockForAllHasNoEntropyAndFullAgreement) {
  Inputs in(LongAudit());  // 32 blocks of 8, n = 5: two free choices
  Choose(&in, [](int32_t, int32_t i) { return 1 + i; });
  const ChoiceStats stats = Choices(in);
  EXPECT_EQ(stats.rows, kAuditedQueries * in.s.n_kv_groups);
  EXPECT_GT(stats.free_choices, stats.rows) << "two for most rows";
  EXPECT_NEAR(stats.entropy, std::log(2) / std::log(32), 1e-12)
      << "two of 32 blocks, equally often";
  // Tokens just before a row's first choice had all blocks, so they chose these, too.
  EXPECT_DOUBLE_EQ(stats.neighbour_agreement, 1);
}

TEST(Choices, SpreadChoicesHaveAHighEntropyAndNoAgreement) {
  Inputs in(LongAudit());
  Choose(&in, [](int32_t t, int32_t i) {
    const int32_t candidates = t / 8 - 2;  // blocks 1 … candidates
    return 1 + (2 * t + i) % candidates;
  });
  const ChoiceStats stats = Choices(in);
  EXPECT_GT(stats.entropy, 0.8);
  EXPECT_LE(stats.entropy, 1);
  EXPECT_LT(stats.neighbour_agreement, 0.3);
}

TEST(Choices, TheOverlapIsTheShareOfSelectedTokensInTheWindow) {
  Inputs in(LongAudit());
  in.s.window = 256;
  EXPECT_DOUBLE_EQ(Choices(in).window_overlap, 1) << "the window is all of the past";
  EXPECT_EQ(Choices(in, /*has_window=*/false).window_overlap, 0);
  in.s.window = 1;
  double expected = 0;
  for (int32_t i = 0; i < kAuditedQueries; ++i) {
    const int32_t t = AuditedQuery(kStep, i, 256);
    expected += 1.0 / static_cast<double>(BranchRule<kSel>::KeysRead(in.s, t, 0));
  }
  EXPECT_NEAR(Choices(in).window_overlap, expected / kAuditedQueries, 1e-12);
}

TEST(Choices, AreNotFreeWhereEveryBlockIsChosen) {
  NsaShape s = LongAudit();
  s.n_sel = s.sel_blocks();
  const ChoiceStats stats = Choices(Inputs(s));
  EXPECT_EQ(stats.free_choices, 0);
  EXPECT_EQ(stats.entropy, 0);
  EXPECT_EQ(stats.neighbour_agreement, 0);
}

TEST(Choices, TheTokenBeforeADocumentIsNoNeighbour) {
  const std::vector<int32_t> documents = Documents(LongAudit(), {128});
  Inputs in(LongAudit(), documents);
  std::vector<int32_t> chosen(int64_t{1} * kAuditedQueries * ChoiceWidth(in.s));
  ASSERT_OK(AuditChoices({}, {.shape = in.s,
                              .blocks = Span(in.blocks),
                              .doc_start = in.Documents(),
                              .step = kStep,
                              .queries = kAuditedQueries,
                              .chosen = Span(chosen)}));
  for (int32_t i = 0; i < kAuditedQueries; ++i) {
    const int32_t t = AuditedQuery(kStep, i, 256);
    EXPECT_EQ(chosen[int64_t{1} * i * ChoiceWidth(in.s)], t < 128 ? 0 : 128);
    if (t == 128) {
      EXPECT_EQ(chosen[int64_t{1} * i * ChoiceWidth(in.s) + 11], -1);
    }
  }
}

TEST(Audit, AWrongBranchSizeOrCountIsRefused) {
  const Inputs in(LongAudit());
  std::vector<float> kept(4 * 8);
  const AuditArgs good = {.shape = in.s,
                          .branch = kWin,
                          .q = Span(in.q),
                          .k = Span(in.k),
                          .queries = 8,
                          .kept = Span(kept)};
  EXPECT_OK(AuditAttention({}, good));
  AuditArgs bad = good;
  bad.branch = kCmp;
  EXPECT_THAT(std::string(AuditAttention({}, bad).message()), ::testing::StartsWith("branch: 0"));
  bad = good;
  bad.queries = 257;
  EXPECT_THAT(std::string(AuditAttention({}, bad).message()),
              ::testing::StartsWith("queries: 257"));
  bad = good;
  bad.queries = 9;
  EXPECT_EQ(AuditAttention({}, bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.branch = kSel;  // without blocks
  EXPECT_EQ(AuditAttention({}, bad).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nsa::testing
