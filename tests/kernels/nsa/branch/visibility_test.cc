// Tests the rule of each branch against the oracle's predicates, which say whether a given token
// sees a given key.
#include "common/nsa/visibility.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/oracle.h"

namespace nsa {
namespace {

constexpr int32_t kRows = 2;  // batch rows

NsaShape Shape(int32_t seq_len, int32_t l, int32_t d, int32_t l_sel, int32_t n_sel,
               int32_t window) {
  return {kRows, seq_len, 4, 2, 16, 16, l, d, l_sel, n_sel, window};
}

// Sequences with and without an incomplete last block; overlapping, adjacent and larger blocks; few
// and many choices.
std::vector<NsaShape> Shapes() {
  return {
      Shape(64, 8, 4, 16, 3, 16),   Shape(123, 16, 8, 32, 3, 64), Shape(97, 32, 16, 16, 4, 1),
      Shape(50, 16, 16, 16, 3, 50), Shape(31, 32, 16, 64, 3, 40), Shape(129, 4, 1, 8, 5, 7),
      Shape(200, 12, 4, 4, 6, 33),  Shape(1, 16, 8, 32, 3, 512),  Shape(80, 8, 2, 10, 64, 1000),
  };
}

std::vector<int32_t> Documents(const NsaShape& s, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> doc_start;
  for (int32_t b = 0; b < s.batch; ++b) {
    int32_t first = 0;
    for (int32_t t = 0; t < s.seq_len; ++t) {
      if (random() % 17 == 0) first = t;
      doc_start.push_back(first);
    }
  }
  return doc_start;
}

int32_t KeysOf(const NsaShape& s, Branch branch) {
  return branch == kCmp ? s.cmp_blocks() : s.seq_len;
}

oracle::Visible Oracle(const NsaShape& s, Branch branch, const oracle::Doc& doc) {
  if (branch == kCmp) return oracle::SeesCompressed(s, doc);
  if (branch == kWin) return oracle::SeesWindow(s, doc);
  // Selected branch before the choice of blocks: the past of the document.
  return [doc](int64_t b, int64_t, int64_t t, int64_t j) { return j <= t && j >= doc(b, t); };
}

template <Branch kBranch>
void ExpectKeysOfTheOracle(const NsaShape& s, const std::vector<int32_t>& doc_start) {
  const oracle::Doc doc = oracle::DocOf(s, doc_start);
  const oracle::Visible visible = Oracle(s, kBranch, doc);
  for (int32_t b = 0; b < s.batch; ++b) {
    for (int32_t t = 0; t < s.seq_len; ++t) {
      const auto first = static_cast<int32_t>(doc(b, t));
      const KeyRange keys = BranchRule<kBranch>::Keys(s, t, first);
      for (int32_t j = 0; j < KeysOf(s, kBranch); ++j) {
        ASSERT_EQ(j >= keys.begin && j < keys.end, visible(b, 0, t, j))
            << s.ToString() << " t=" << t << " j=" << j;
      }
    }
  }
}

TEST(Visibility, KeysAreThoseThatTheOracleSees) {
  for (const NsaShape& s : Shapes()) {
    for (const std::vector<int32_t>& doc_start : {std::vector<int32_t>{}, Documents(s, 1)}) {
      ExpectKeysOfTheOracle<kCmp>(s, doc_start);
      ExpectKeysOfTheOracle<kSel>(s, doc_start);
      ExpectKeysOfTheOracle<kWin>(s, doc_start);
    }
  }
}

// Keys are summed over the batch and the groups. For the selected branch the oracle chooses blocks
// from arbitrary scores, since the count does not depend on them.
TEST(Visibility, KeysReadAreCountedOneByOne) {
  for (const NsaShape& s : Shapes()) {
    for (const std::vector<int32_t>& doc_start : {std::vector<int32_t>{}, Documents(s, 2)}) {
      const oracle::Doc doc = oracle::DocOf(s, doc_start);
      std::mt19937 random(3);
      std::vector<float> scores(int64_t{1} * s.batch * s.seq_len * s.n_kv_groups * s.sel_blocks());
      for (float& score : scores) score = static_cast<float>(random() % 5);
      const std::vector<int32_t> blocks = oracle::Choose(s, scores, doc);
      for (const Branch branch : {kCmp, kSel, kWin}) {
        const oracle::Visible visible =
            branch == kSel ? oracle::SeesSelected(s, doc, blocks) : Oracle(s, branch, doc);
        int64_t want = 0;
        for (int32_t b = 0; b < s.batch; ++b) {
          for (int32_t g = 0; g < s.n_kv_groups; ++g) {
            for (int32_t t = 0; t < s.seq_len; ++t) {
              for (int32_t j = 0; j < KeysOf(s, branch); ++j) want += visible(b, g, t, j);
            }
          }
        }
        EXPECT_EQ(KeysRead(s, branch, doc_start), want)
            << s.ToString() << " branch " << int{branch} << " documents " << !doc_start.empty();
      }
    }
  }
}

template <Branch kBranch>
void ExpectTokensOfTheOracle(NsaShape s, int32_t width) {
  s.window = std::min(s.window, s.seq_len);
  const oracle::Visible visible = Oracle(s, kBranch, oracle::DocOf(s, {}));
  const int32_t keys = KeysOf(s, kBranch);
  for (int32_t begin = 0; begin < keys; begin += width) {
    const int32_t end = std::min(begin + width, keys);
    const TokenRange some = BranchRule<kBranch>::Tokens(s, begin, end);
    const TokenBounds all = BranchRule<kBranch>::TokensOfAll(s, begin, end);
    for (int32_t t = 0; t < s.seq_len; ++t) {
      int32_t seen = 0;
      for (int32_t j = begin; j < end; ++j) seen += visible(0, 0, t, j);
      const std::string where = s.ToString() + " t=" + std::to_string(t) + " keys from " +
                                std::to_string(begin) + " to " + std::to_string(end);
      ASSERT_EQ(t >= some.begin && t<some.end, seen> 0) << where;
      ASSERT_EQ(t >= all.from && t <= all.to, seen == end - begin) << where;
    }
  }
}

TEST(Visibility, TokensAreThoseThatSeeSomeOrAllKeysOfATile) {
  for (const NsaShape& s : Shapes()) {
    for (const int32_t width : {1, 5, 64}) {
      ExpectTokensOfTheOracle<kCmp>(s, width);
      ExpectTokensOfTheOracle<kSel>(s, width);
      ExpectTokensOfTheOracle<kWin>(s, width);
    }
  }
}

TEST(Visibility, SelectionBlocksCutTheKeysThatAreSeen) {
  const NsaShape s = Shape(123, 16, 8, 32, 3, 64);
  const KeyRange seen = BranchRule<kSel>::Keys(s, 70, 40);
  const KeyRange own = Intersection(seen, SelectionBlock(s, 2));
  EXPECT_EQ(own.begin, 64);
  EXPECT_EQ(own.end, 71);
  const KeyRange first = Intersection(seen, SelectionBlock(s, 1));
  EXPECT_EQ(first.begin, 40);
  EXPECT_EQ(first.end, 64);
  const KeyRange before = Intersection(seen, SelectionBlock(s, 0));
  EXPECT_LE(before.end, before.begin);
  const KeyRange candidates = CandidateBlocks(s, 70, 40);
  EXPECT_EQ(candidates.begin, 1);
  EXPECT_EQ(candidates.end, 3);
}

}  // namespace
}  // namespace nsa
